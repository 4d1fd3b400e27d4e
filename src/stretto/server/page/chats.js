// Conversations, kept in this browser: trees of messages whose chosen path is shown. Nothing of it reaches a server.
const watchers = new Set(), channel = new BroadcastChannel('stretto.chats'), TITLE_CHARS = 80;
const FORMAT = 'stretto.chats.1', ROLES = ['user', 'assistant', 'tool'];

// `chat` is the open conversation and `messages` its tree by ids; `saved` says whether it is in the list already.
export const store = {chats: [], chat: null, messages: new Map(), settings: {}, ready: false, problem: null};
export const subscribe = fn => { watchers.add(fn); return () => watchers.delete(fn); };
export const changed = () => { for (const fn of [...watchers]) fn(); };

// `crypto.randomUUID` is missing where the page came without TLS.
export const newId = () => [...crypto.getRandomValues(new Uint8Array(12))].map(byte => byte.toString(16).padStart(2, '0')).join('');
let latest = 0;
const now = () => latest = Math.max(Date.now(), latest + 1); // siblings are in the order of their times

const result = request => new Promise((resolve, reject) => {
  request.onsuccess = () => resolve(request.result);
  request.onerror = () => reject(request.error);
});

// fn(isGone) is called when messages are removed, here or in another tab.
const removals = new Set();
export const onRemoval = fn => removals.add(fn);
const tellRemoved = ids => { for (const fn of removals) fn(message => ids.has(message.id) || ids.has(message.chat)); };

const opening = (async () => {
  const request = indexedDB.open('stretto', 1);
  request.onupgradeneeded = () => {
    const stores = Object.fromEntries(['chats', 'messages', 'tokens', 'settings'].map(
      name => [name, request.result.createObjectStore(name, {keyPath: 'id'})]));
    for (const name of ['messages', 'tokens']) stores[name].createIndex('chat', 'chat');
  };
  return result(request);
})();

// `change` gets the object stores. Other tabs are told when it is written; a browser that keeps nothing says so once.
async function write(change, told = {}) {
  try {
    const work = (await opening).transaction(['chats', 'messages', 'tokens', 'settings'], 'readwrite');
    change(Object.fromEntries([...work.objectStoreNames].map(name => [name, work.objectStore(name)])));
    await new Promise((resolve, reject) => { work.oncomplete = resolve; work.onabort = () => reject(work.error); });
    channel.postMessage(told);
  } catch (error) {
    if (store.problem) return;
    store.problem = `This browser does not keep conversations: ${error?.message ?? 'it has refused'}`;
    changed();
  }
}
const read = async (name, ask) => {
  try { return await result(ask((await opening).transaction(name).objectStore(name))); } catch { return undefined; }
};

export async function load() {
  await list();
  Object.assign(store.settings, (await read('settings', all => all.get('now')))?.value);
  store.ready = true;
  changed();
}
async function list() {
  const found = await read('chats', all => all.getAll()) ?? [], {chat} = store;
  store.chats = found.map(one => one.id === chat?.id ? chat : one).sort((a, b) => b.changed - a.changed);
}
channel.onmessage = async ({data}) => { // another tab has written
  if (data.gone) tellRemoved(new Set(data.gone));
  await list();
  if (data.gone?.includes(store.chat?.id)) begin();
  if (data.settings) Object.assign(store.settings, (await read('settings', all => all.get('now')))?.value);
  if (store.chat && data.chat === store.chat.id) await open(store.chat.id);
  changed();
};

export function change(settings) {
  Object.assign(store.settings, settings);
  write(all => all.settings.put({id: 'now', value: store.settings}), {settings: true});
  changed();
}

// ---- one conversation ----
export function begin() {
  const at = now();
  store.chat = {id: newId(), title: '', created: at, changed: at, pinned: false, picks: {}};
  store.messages = new Map();
  changed();
}

const held = new Map(); // messages that are being answered, which are newer than what is kept
export const hold = message => held.set(message.id, message);
export const release = message => held.delete(message.id);

export async function open(id) {
  const isShown = store.chat?.id === id;
  const [chat, found] = await Promise.all([
    read('chats', all => all.get(id)), read('messages', all => all.index('chat').getAll(id))]);
  if (!chat || (isShown && store.chat.id !== id)) return false; // it is gone, or another one was opened meanwhile
  const same = one => { // what has not changed keeps its place in the document
    const old = store.messages.get(one.id);
    return old?.version === one.version && old.running === one.running ? old : one;
  };
  const messages = found.sort((a, b) => a.created - b.created).map(one => held.get(one.id) ?? same(one));
  store.chat = chat;
  store.chats = store.chats.map(one => one.id === id ? chat : one);
  store.messages = new Map(messages.map(one => [one.id, one]));
  changed();
  return true;
}

// The chosen path: messages from the first to the last, each with its siblings.
export function path(upTo = null) {
  const byParent = Map.groupBy(store.messages.values(), one => one.parent), found = [];
  for (let parent = null; byParent.has(parent);) {
    const siblings = byParent.get(parent), at = siblings.findIndex(one => one.id === store.chat.picks[parent ?? '']);
    const message = siblings[at < 0 ? siblings.length - 1 : at];
    found.push({message, siblings});
    if (message.id === upTo) break;
    parent = message.id;
  }
  return found;
}

// The messages before one, wherever it is in the tree.
export function before(message, all = store.messages) {
  const found = [];
  for (let one = all.get(message.parent); one; one = all.get(one.parent)) found.unshift(one);
  return found;
}
// Those of a conversation, which need not be the open one.
export async function messagesOf(chat) {
  if (store.chat?.id === chat) return store.messages;
  return new Map((await read('messages', all => all.index('chat').getAll(chat)) ?? []).map(one => [one.id, one]));
}

export function save(chat, messages, tokens = new Map()) {
  return write(all => {
    if (chat) all.chats.put(chat);
    for (const one of messages) {
      all.messages.put(one);
      if (tokens.has(one.id)) all.tokens.put({id: one.id, chat: one.chat, tokens: tokens.get(one.id)});
    }
  }, {chat: messages[0]?.chat ?? chat.id});
}

export function add(message) {
  const {chat} = store, made = {id: newId(), chat: chat.id, created: now(), version: 0, content: '', ...message};
  store.messages.set(made.id, made);
  chat.picks = {...chat.picks, [made.parent ?? '']: made.id};
  chat.title ||= message.content.trim().split('\n')[0].slice(0, TITLE_CHARS);
  chat.changed = made.created;
  if (!store.chats.includes(chat)) store.chats = [chat, ...store.chats.filter(one => one.id !== chat.id)];
  save(chat, [made]);
  changed();
  return made;
}

export function pick(message) {
  store.chat.picks = {...store.chat.picks, [message.parent ?? '']: message.id};
  save(store.chat, []);
  changed();
}

// Shows the path to a message, wherever it is in the tree.
export function lead(message) {
  const picks = {...store.chat.picks};
  for (const one of [...before(message), message]) picks[one.parent ?? ''] = one.id;
  store.chat.picks = picks;
  save(store.chat, []);
  changed();
}

export const erase = (ids, told) => write(all => { for (const id of ids) { all.messages.delete(id); all.tokens.delete(id); } }, told);

// Removes a message with all that follows it.
export function remove(message) {
  const gone = new Set([message.id]);
  for (const one of store.messages.values()) if (gone.has(one.parent)) gone.add(one.id);
  for (const id of gone) store.messages.delete(id);
  tellRemoved(gone);
  erase(gone, {chat: message.chat, gone: [...gone]});
  changed();
}

// Conversations one of whose messages has these words, in small letters.
export async function holding(words) {
  const found = new Set();
  try {
    const request = (await opening).transaction('messages').objectStore('messages').openCursor();
    await new Promise((resolve, reject) => {
      request.onerror = () => reject(request.error);
      request.onsuccess = () => {
        const at = request.result;
        if (!at) return resolve();
        if (!found.has(at.value.chat) && (at.value.content ?? '').toLowerCase().includes(words)) found.add(at.value.chat);
        at.continue();
      };
    });
  } catch { /* nothing is kept: titles are what there is */ }
  return found;
}

// ---- taken out and brought in ----
export async function exported(chats) {
  const all = await Promise.all(chats.map(async chat => (
    {...chat, messages: await read('messages', kept => kept.index('chat').getAll(chat.id)) ?? []})));
  return JSON.stringify({format: FORMAT, chats: all}, null, 1);
}

// Text of a file that `exported` or `markdownOf` has written; only what is known is taken, under names of its own.
export async function bringIn(text) {
  const found = chatsIn(text);
  for (const one of found) {
    const id = newId(), names = new Map((one.messages ?? []).map(message => [message.id, newId()]));
    const messages = (one.messages ?? []).filter(message => ROLES.includes(message.role)).map(message => ({
      content: '', ...Object.fromEntries(Object.entries(message).filter(([name, value]) => Object.hasOwn(KNOWN, name) && KNOWN[name](value))),
      id: names.get(message.id), chat: id, parent: names.get(message.parent) ?? null, version: 0}));
    const picks = Object.fromEntries(Object.entries(one.picks ?? {}).map(([parent, child]) => [names.get(parent) ?? '', names.get(child)]));
    await save({id, title: String(one.title ?? ''), created: now(), changed: Number(one.changed) || now(), pinned: !!one.pinned, picks}, messages);
  }
  await list();
  changed();
  return found.length;
}
function chatsIn(text) {
  let found = null;
  try { found = JSON.parse(text); } catch { /* it may be markdown */ }
  const all = found ? found.format === FORMAT && found.chats : fromMarkdown(text);
  if (!Array.isArray(all)) throw new Error('it is no file of conversations that this page has written');
  return all;
}
const isText = value => typeof value === 'string', isNumber = value => Number.isFinite(value);
const KNOWN = {
  role: isText, content: isText, reasoning: isText, model: isText, finish: isText, call: isText, created: isNumber, reasoned: isNumber,
  stats: value => value && Object.values(value).every(one => one == null || isNumber(one)),
  images: value => Array.isArray(value) && value.every(url => /^data:image\//.test(url)),
  calls: value => Array.isArray(value) && value.every(one => isText(one?.id) && isText(one.function?.name) && isText(one.function.arguments)),
};

// The chosen path as markdown. A comment before each heading tells it from the headings of texts.
const MARK = /^<!-- (user|assistant|tool) -->\n## (.*)\n/m, FENCE = '```';
export const markdownOf = () => `# ${store.chat.title}\n\n${path().map(({message: {role, model, content, calls, images}}) => {
  const parts = [content, ...(calls ?? []).map(one => `${FENCE}json\n${JSON.stringify(one.function)}\n${FENCE}`), images?.length && `*${images.length} images*`];
  const text = parts.filter(Boolean).join('\n\n').replace(new RegExp(MARK, 'gm'), ' $&');
  return `<!-- ${role} -->\n## ${role === 'user' ? 'You' : role === 'tool' ? 'Tool' : model}\n\n${text}\n`;
}).join('\n')}`;
function fromMarkdown(text) {
  const [begin, ...parts] = text.replaceAll('\r\n', '\n').split(MARK), messages = [];
  for (let k = 0; k < parts.length; k += 3) {
    const role = parts[k] === 'assistant' ? 'assistant' : 'user', content = parts[k + 2].trim(); // a result alone is something that was said
    messages.push({id: String(k), parent: k ? String(k - 3) : null, role, content, created: k, ...(role === 'assistant' ? {model: parts[k + 1]} : {})});
  }
  return messages.length ? [{title: /^# (.*)/m.exec(begin)?.[1] ?? '', messages}] : null;
}

export const messageOf = id => read('messages', all => all.get(id));
export const tokensOf = async message => (await read('tokens', all => all.get(message.id)))?.tokens ?? [];

// ---- the list ----
export function edit(chat, fields) {
  Object.assign(chat, fields);
  save(chat, []);
  changed();
}

export async function forget(chats) {
  const ids = new Set(chats.map(one => one.id));
  store.chats = store.chats.filter(one => !ids.has(one.id));
  if (ids.has(store.chat?.id)) begin();
  tellRemoved(ids);
  for (const id of ids) {
    const messages = await read('messages', all => all.index('chat').getAllKeys(id)) ?? [];
    await write(all => all.chats.delete(id));
    await erase(messages, {gone: [id]});
  }
  changed();
}
