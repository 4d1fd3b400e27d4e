// Chat: a conversation, its box, its list. Messages are a tree whose chosen path is shown; see chats.js and answering.js.
import {html, Component, useEffect, useLayoutEffect, useRef, useState} from './vendor/preact.js';
import {ABANDONED_MS, answerCalls, idsUpTo, isRunning, onMessage, requestOf, resume, resumeElsewhere, runningIn, stop, tokens, tokensNow, write} from './answering.js';
import {add, begin, change, changed, load, open, path, pick, remove, store, subscribe} from './chats.js';
import {IMAGE_BYTES, read} from './conversation.js';
import {Act, Icon} from './icons.js';
import {Prose, harmless} from './prose.js';
import {controlOf, mistakes} from './options.js';
import {Loading, Panel, Settings, Switch, TokenPanel, Tree, aboutModel, takeModel, usePlaces} from './panels.js';
import {Sidebar} from './sidebar.js';
import {probability} from './tokens.js';
import {run, runsHere} from './toolbox.js';
import {bytes, copyText, number} from './ui.js';

const NEAR_PIXELS = 48, TEXT_BYTES = 256 << 10, SAID_MS = 1800, FIRST_MESSAGES = 6, LIGHT_MS = 40, LIGHT_MARGIN = '200px';
const EXAMPLES = [
  ['Explain', 'Explain in three sentences what a hash table is.', 'a short answer that stays on the page'],
  ['Table', 'Make a table of five HTTP status codes: code, name, when it is sent.', 'tables, lists and formulas are set as such'],
  ['Code', 'Write a Python function that counts the words of a text.', 'coloured, with a button that copies it'],
];
const KEYS = [
  ['Enter', 'send'], ['Shift Enter', 'a new line'], ['Esc', 'stop the answer, or close what is open'], ['↑', 'in an empty box: edit your last message'],
  ['/', 'search conversations'], ['N', 'new chat'], ['T', 'tokens on or off'], ['← →', 'in an answer with tokens: from token to token'],
  ['Enter', 'on a token: to its alternatives'], ['[ ]', 'previous and next version of the last answer'], [',', 'settings'], ['?', 'this sheet'],
];
const ui = {editing: null, draft: sessionStorage.getItem('stretto.draft') ?? '', images: [], drawer: false, said: '', below: false, panel: null, at: null, keys: false, picker: false, finished: '', wrong: null, beneath: null};
addEventListener('pagehide', () => { try { sessionStorage.setItem('stretto.draft', ui.draft); } catch { /* it is too long to be kept */ } });
const set = fields => { Object.assign(ui, fields); changed(); };
export const say = said => { set({said}); setTimeout(() => { if (ui.said === said) set({said: ''}); }, SAID_MS); };
const isPhone = () => matchMedia('(max-width: 52rem)').matches;
const focusBox = () => requestAnimationFrame(() => document.getElementById('ask')?.focus());

// ---- what a reader does ----
const last = () => path().at(-1)?.message ?? null;

function remember(id) { // the address names the conversation, so that a reload opens it
  const hash = id ? `#chat/${id}` : '#chat';
  if (location.hash !== hash && /^#?(chat.*)?$/.test(location.hash)) history.replaceState(null, '', hash);
}
function answerTo(parent, model) {
  if (!model) return;
  remember(store.chat.id);
  const made = add({parent: parent?.id ?? null, role: 'assistant', model});
  write(made).then(() => set({finished: `Answer ${made.finish === 'stop' ? 'finished' : ENDS[made.finish] ?? 'ended'}, ${made.stats?.tokens ?? 0} tokens`}));
}
// What is wrong in the settings is shown at its field, and said at the box, before anything is sent.
function refused() {
  const [[name, mistake] = []] = Object.entries(mistakes(store.settings.values ?? {}, true));
  set({wrong: name ? `Not sent: ${name === 'grammar' ? 'the schema' : name} in the settings is wrong. ${mistake}` : null});
  if (name) toWrong();
  return !!name;
}
function toWrong() {
  set({panel: 'settings'});
  requestAnimationFrame(() => {
    const field = document.querySelector('.panel [aria-invalid=true]');
    if (field?.closest('details')) field.closest('details').open = true;
    field?.focus();
  });
}
function send(model) {
  const content = ui.draft.trim(), {images} = ui;
  if (!(content || images.length) || !model || runningIn(store.chat) || refused()) return;
  const message = add({parent: last()?.id ?? null, role: 'user', content, images: images.length ? images : undefined});
  set({draft: '', images: [], at: null});
  answerTo(message, model);
}
function resend(message, content, model) { // as a sibling: the earlier version stays
  set({editing: null});
  answerTo(add({parent: message.parent, role: 'user', content, images: message.images}), model);
  focusBox();
}
const parentOf = message => message.parent ? store.messages.get(message.parent) : null;
function fresh() {
  begin();
  remember(null);
  set({drawer: false, editing: null, draft: '', images: [], at: null, panel: ui.panel === 'token' ? null : ui.panel});
  focusBox();
}
async function show(chat) {
  await open(chat.id);
  resume();
  remember(chat.id);
  set({drawer: false, editing: null, at: null});
}
const choose = at => {
  set({at, panel: 'token'});
  requestAnimationFrame(() => document.querySelector('.t.on')?.scrollIntoView({block: 'nearest'}));
};
const flip = () => {
  const on = !store.settings.tokens;
  change({tokens: on});
  set({at: null, panel: on && !isPhone() ? 'token' : ui.panel === 'token' ? null : ui.panel});
};
const closePanel = () => {
  const back = document.querySelector(ui.panel === 'token' ? '.prose:has(.on)' : '#settings');
  set({panel: null, at: null});
  back?.focus();
};
// Images are sent as such; the text of other files is put into the box.
async function takeFiles(files, model) {
  const all = [...files], found = all.filter(one => one.type.startsWith('image/'));
  if (found.length && model?.vision === false) say(`${model.name} takes no images`);
  else if (found.some(one => one.size > IMAGE_BYTES)) say('An image may have 8 MiB at most');
  else if (found.length) {
    const images = await Promise.all(found.map(read)); // others may be taken meanwhile
    set({images: [...ui.images, ...images]});
  }
  for (const one of all.filter(one => !found.includes(one))) {
    const text = one.size > TEXT_BYTES ? null : await one.text().catch(() => '\0'); // a folder cannot be read
    if (text == null) say('A text file may have 256 KiB at most');
    else if (/[\0\ufffd]/.test(text)) say(`${harmless(one.name)} is no text`);
    else set({draft: `${ui.draft && `${ui.draft.trimEnd()}\n\n`}${fenced(one.name, text)}\n`});
  }
  focusBox();
}
function fenced(name, text) {
  const ticks = '`'.repeat((text.match(/`+/g) ?? []).reduce((most, run) => Math.max(most, run.length + 1), 3));
  return `${name}:\n${ticks}${/\.(\w+)$/.exec(name)?.[1] ?? ''}\n${text.trimEnd()}\n${ticks}`;
}
// Files are taken wherever they are dropped or pasted. What a spreadsheet or a text editor copies is an image too, and is meant as text.
let current = null; // the model
const hasFiles = data => !!data?.types.includes('Files');
const over = event => { if (hasFiles(event.dataTransfer)) event.preventDefault(); };
const drop = event => { if (hasFiles(event.dataTransfer)) { event.preventDefault(); takeFiles(event.dataTransfer.files, current); } };
const paste = event => {
  const data = event.clipboardData;
  if (hasFiles(data) && !data.types.includes('text/plain')) { event.preventDefault(); takeFiles(data.files, current); }
};
async function copy(text, what) { say(await copyText(text) ? `${what} copied` : 'This browser does not allow it here'); }

// ---- messages ----
class Memo extends Component { // draws again when one of `of` has changed
  shouldComponentUpdate(next) { return next.of.some((one, i) => one !== this.props.of[i]); }
  render({draw}) { return draw(); }
}

function Versions({message, siblings}) {
  const at = siblings.indexOf(message), to = by => pick(siblings[(at + by + siblings.length) % siblings.length]);
  return siblings.length > 1 && html`<span class="branch" role="group" aria-label="Versions">
    <${Act} icon="left" label="Previous version" onClick=${() => to(-1)}/><span>${at + 1}/${siblings.length}</span>
    <${Act} icon="right" label="Next version" onClick=${() => to(1)}/></span>`;
}
const hasReplies = message => [...store.messages.values()].some(one => one.parent === message.id);
function Delete({message}) {
  const drop = () => {
    if (hasReplies(message) && !confirm('Delete this message and all that follows it?')) return;
    remove(message);
    if (!isPhone()) focusBox(); // the button is gone, and the keyboard of a phone is not wanted
  };
  return html`<${Act} icon="bin" label="Delete from here" onClick=${drop}/>`;
}

// What is out of sight is laid out when it comes near; by a guess of its height, a browser takes in one message at a time.
const LINE_LETTERS = 72, LINE_PX = 26, FRAME_PX = 64;
const guessed = message => ({containIntrinsicSize: `auto ${FRAME_PX + LINE_PX * (message.content ?? '').split('\n').reduce(
  (n, line) => n + Math.ceil(line.length / LINE_LETTERS), 0)}px`});

function Mine({message, siblings, model}) {
  if (ui.editing === message.id) return html`<article class="mine" aria-label="You"><${Edit} message=${message} model=${model}/></article>`;
  return html`<article class="mine" aria-label="You" style=${guessed(message)}>
    ${message.images?.map((url, i) => html`<img key=${i} src=${url} alt=${`Image ${i + 1} of your message`}/>`)}
    ${message.content && html`<div class="said">${harmless(message.content)}</div>`}
    <footer><${Versions} ...${{message, siblings}}/><span class="acts">
      <${Act} icon="copy" label="Copy" onClick=${() => copy(message.content, 'Message')}/>
      <${Act} icon="edit" label="Edit and send again" onClick=${() => set({editing: message.id})}/>
      <${Delete} message=${message}/></span></footer></article>`;
}

const grow = box => { box.style.height = 'auto'; box.style.height = `${box.scrollHeight + 2}px`; };
function Edit({message, model}) {
  const box = useRef();
  useEffect(() => { grow(box.current); box.current.focus(); box.current.setSelectionRange(1e6, 1e6); }, []);
  const done = () => { const text = box.current.value.trim(); if (text && !runningIn(store.chat) && !refused()) resend(message, text, model); };
  const key = event => {
    if (event.key === 'Escape') { event.stopPropagation(); set({editing: null}); focusBox(); }
    if (sends(event)) { event.preventDefault(); done(); }
  };
  return html`<form class="edit" onSubmit=${event => { event.preventDefault(); done(); }}>
    <textarea ref=${box} rows="1" aria-label="Edit your message" onKeyDown=${key} onInput=${event => grow(event.target)}
      defaultValue=${message.content}></textarea>
    <div><small>The earlier version is kept.</small>
      <button type="button" class="quiet" onClick=${() => set({editing: null})}>Cancel</button><button class="plain">Send</button></div></form>`;
}
// On a phone Enter breaks lines: the button sends there. While a word is being composed, Enter chooses it.
const sends = event => event.key === 'Enter' && !event.shiftKey && !event.isComposing && !isPhone();

const ENDS = {length: 'the limit of tokens was reached', full: 'the context is full', timeout: 'the time was up', repetition: 'it repeated itself', stopped: 'stopped', failed: 'failed'};
// A call of a tool, with its result once there is one; without, a reader may give it.
function Call({call, result}) {
  const {name, arguments: given} = call.function;
  return html`<details class="card" open><summary><${Icon} name="tool"/><b>${harmless(name)}</b>
      <small>${result ? runsHere(name) ? 'run in this page' : 'answered by you' : 'waits for a result'}</small></summary>
    <dl><dt>Arguments</dt><dd><code>${harmless(given)}</code></dd>
      ${result && html`<dt>Result</dt><dd><code>${harmless(result.content)}</code></dd>`}</dl></details>`;
}
function Calls({message, results}) {
  const [given, set] = useState({}), calls = message.calls ?? [], live = isRunning(message), waits = !live && calls.some(one => !results[one.id]);
  const valueOf = call => given[call.id] ?? (runsHere(call.function.name) ? run(call) : '');
  const submit = event => { event.preventDefault(); answerCalls(message, calls.map(valueOf)); };
  return html`${calls.map(call => html`<${Call} key=${call.id} call=${call} result=${results[call.id]}/>`)}
    ${waits && html`<form class="results" onSubmit=${submit}>${calls.map(call => html`<label key=${call.id}>Result of ${harmless(call.function.name)}
        <textarea rows="1" value=${valueOf(call)} onInput=${event => set({...given, [call.id]: event.target.value})}></textarea></label>`)}
      <button class="plain">Send results</button></form>`}`;
}

// The tokens of an answer in another view: the cells that hold them, or several tokens at one position behind them.
async function openIn(view, message, choose, n) {
  say('Reading the conversation’s tokens…');
  try {
    const {prompt, answer} = await idsUpTo(message, n), title = harmless(store.chat.title) || 'this chat';
    (await import(`./${view}.js`)).take({model: message.model, ids: [...prompt, ...answer], about: `“${title}”, ${
      n == null ? 'to the end of the answer' : `up to token ${n} of the answer`}`});
    choose(message.model);
    location.hash = `#${view}`;
  } catch (error) { say(error.message); }
}
async function openCompare(message) { // the conversation up to this answer, asked twice
  const {model, messages, max_tokens, tools, ...options} = requestOf(message);
  (await import('./compare.js')).take({model, messages, options, about: `“${harmless(store.chat.title) || 'this chat'}”`});
  location.hash = '#compare';
}
const Beneath = ({message, choose, n}) => html`<div class="beneath">
  <button type="button" class="plain" onClick=${() => openIn('parallel', message, choose, n)}>Several tokens at one place</button>
  <button type="button" class="plain" onClick=${() => openIn('cells', message, choose, n)}>Its cells</button>
  ${n == null && html`<button type="button" class="plain" onClick=${() => openCompare(message)}>Compare with another model or settings</button>`}</div>`;

const gradeOf = p => p == null || p >= .5 ? 'p0' : p >= .2 ? 'p1' : p >= .05 ? 'p2' : 'p3';
// What of a text the tokens of an answer, or of its reasoning, are: by ranges of the source.
function rangesOf(list, reasoning, chosen) {
  const all = [];
  let at = 0;
  for (const [i, token] of list.entries()) {
    if (!!token.reasoning !== reasoning || !token.content) continue;
    all.push({i, token, from: at, to: at += token.content.length});
  }
  const ranges = (from, to) => {
    const found = [];
    let low = 0, high = all.length;
    while (low < high) { const middle = low + high >> 1; if (all[middle].to <= from) low = middle + 1; else high = middle; }
    let end = from;
    for (; low < all.length && all[low].from < to; low++) {
      const {i, token} = all[low], p = probability(token), a = Math.max(from, all[low].from), b = Math.min(to, all[low].to);
      const word = a + (token.content.startsWith(' ') && b > a + 1 && a === all[low].from ? 1 : 0); // the space before it stays plain
      if (word > a) found.push({from: a, to: word});
      found.push({from: word, to: b, i, class: `t ${gradeOf(p)}${token.forked ? ' given' : ''}${i === chosen ? ' on' : ''}`});
      end = b;
    }
    if (end < to) found.push({from: end, to});
    return found;
  };
  return Object.assign(ranges, {chosen: all.find(one => one.i === chosen)});
}

// Only answers near the part that one sees carry their tokens, and one after the other: a long conversation has too many for all.
const waiting = new Map();
let lighting = 0;
function light() {
  const [[box, act] = []] = waiting;
  waiting.delete(box);
  act?.();
  lighting = waiting.size ? setTimeout(light, LIGHT_MS) : 0;
}
function useNear(box, shown) {
  const [near, set] = useState(false);
  useEffect(() => {
    if (!shown) return;
    const seen = found => { waiting.set(box.current, () => set(found.at(-1).isIntersecting)); lighting ||= setTimeout(light, 0); };
    const watch = new IntersectionObserver(seen, {root: box.current.closest('.scroll'), rootMargin: LIGHT_MARGIN});
    watch.observe(box.current);
    return () => { watch.disconnect(); waiting.delete(box.current); set(false); };
  }, [shown]);
  return near;
}

function Theirs({message, siblings, isLast, model, results, shown, at, chooseModel, space}) {
  const [, again] = useState(0), mine = isRunning(message), {reasoning, content, stats, finish, error} = message;
  const live = mine || (!!message.running && Date.now() - message.touched < ABANDONED_MS); // by this tab, or by another
  const box = useRef(), near = useNear(box, shown), lit = shown && (near || at != null), list = lit ? tokensNow(message) : null;
  useEffect(() => onMessage(message.id, () => again(n => n + 1)), [message.id]);
  useEffect(() => { if (lit && !list) tokens(message).then(() => again(n => n + 1)); }, [message.id, lit]);
  const click = event => { const i = event.target.closest?.('[data-i]')?.dataset.i; if (list && i != null) choose({id: message.id, i: Number(i)}); };
  const move = event => {
    if (!list?.length || event.target !== event.currentTarget) return;
    const end = list.length - 1, to = {ArrowLeft: Math.max(0, (at ?? 0) - 1), ArrowRight: Math.min(end, (at ?? -1) + 1), Home: 0, End: end}[event.key];
    if (to != null) { event.preventDefault(); choose({id: message.id, i: to}); }
    if (event.key === 'Enter' && at != null) { event.preventDefault(); document.querySelector('.alts button:enabled')?.focus(); }
  };
  const thinking = live && !content, busy = runningIn(store.chat);
  const cut = !live && finish && finish !== 'stop' && finish !== 'tool_calls', isFull = finish === 'length' && stats?.prompt + stats?.tokens >= space;
  return html`<article ref=${box} class=${isLast ? 'theirs last' : 'theirs'} aria-label=${`Answer of ${message.model}`} aria-busy=${String(live)}
      style=${live ? null : guessed(message)}>
    ${reasoning && html`<details class="fold"><summary><span class=${thinking ? 'live' : ''}>${thinking ? 'Reasoning' : 'Reasoned'} for ${
      ((message.reasoned ?? 0) / 1000).toFixed(1)} s</span></summary>
      <div onClick=${click}><${Prose} text=${reasoning} rangesOf=${list && rangesOf(list, true, at)}/></div></details>`}
    ${live && !content && !reasoning && !message.calls && html`<p class="waiting"><span class="live">…</span></p>`}
    <div class=${`prose${live ? ' live' : ''}${list ? ' lit' : ''}`} ...${shown ? {tabindex: 0, role: 'group', 'aria-label': 'Answer, token by token'} : {}}
      onClick=${click} onKeyDown=${move}>
      <${Prose} text=${content} rangesOf=${list && rangesOf(list, false, at)}/></div>
    ${message.calls && html`<${Calls} ...${{message, results}}/>`}
    ${error && html`<p class="bad" role="alert">${error}${isLast && controlOf(message.param) && html` ${' '}
      <button type="button" class="link" onClick=${toWrong}>Show it in the settings</button>`}</p>`}
    <footer><${Versions} ...${{message, siblings}}/>${!live && html`<span class="acts">
      <${Act} icon="copy" label="Copy" onClick=${() => copy(content, 'Answer')}/>
      <${Act} icon="again" label="Regenerate" disabled=${busy} onClick=${() => refused() || answerTo(parentOf(message), model)}/>
      ${isLast && html`<${Act} icon="more" label="Continue" disabled=${busy} onClick=${() => refused() || write(message)}/>`}
      <${Act} icon="layers" label="Beneath this answer" aria-expanded=${String(ui.beneath === message.id)}
        onClick=${() => set({beneath: ui.beneath === message.id ? null : message.id})}/>
      <${Delete} message=${message}/></span>`}
      ${!live && html`<small class="stats">${[message.model, cut && ENDS[isFull ? 'full' : finish], stats && `${number(stats.tokens)} tokens`,
        stats?.speed && `${stats.speed.toFixed(0)} tok/s`, stats?.first != null && `first ${stats.first.toFixed(2)} s`].filter(Boolean)
    .map(one => one.replaceAll(' ', '\u00a0')).join(' · ')}</small>`}
    </footer>${!live && ui.beneath === message.id && html`<${Beneath} message=${message} choose=${chooseModel}/>`}</article>`;
}

// ---- scrolling: a stream is followed only while the reader is at its end ----
function Scroll({children, id}) {
  const box = useRef(), inner = useRef(), follows = useRef(true), top = useRef(0);
  const toEnd = () => { box.current.scrollTop = box.current.scrollHeight; };
  useLayoutEffect(() => {
    const watch = new ResizeObserver(() => { if (follows.current) toEnd(); });
    watch.observe(inner.current);
    watch.observe(box.current);
    ui.toEnd = () => { follows.current = true; toEnd(); };
    return () => watch.disconnect();
  }, []);
  useLayoutEffect(() => { ui.toEnd(); }, [id]);
  const scroll = () => {
    const {scrollTop, scrollHeight, clientHeight} = box.current, near = scrollHeight - scrollTop - clientHeight < NEAR_PIXELS;
    if (near) follows.current = true;
    else if (scrollTop < top.current - 1) follows.current = false;
    top.current = scrollTop;
    if (ui.below === follows.current) set({below: !follows.current});
  };
  return html`<div class="scroll" ref=${box} onScroll=${scroll} tabindex="0" role="log" aria-live="off" aria-label="Conversation">
    <div ref=${inner}>${children}</div></div>`;
}

function Messages({model, models, chooseModel}) {
  const all = path(), way = all.filter(({message}) => message.role !== 'tool'), [n, more] = useState(FIRST_MESSAGES), first = Math.max(0, way.length - n);
  useEffect(() => { // the newest are drawn at once, earlier ones when there is time
    if (!first) return;
    const timer = setTimeout(() => more(n + 8), 16);
    return () => clearTimeout(timer);
  }, [first, n]);
  const results = Object.fromEntries(all.filter(({message}) => message.role === 'tool').map(({message}) => [message.call, message]));
  return html`<div class="column">${way.slice(first).map(({message, siblings}, k) => {
    const isLast = first + k === way.length - 1, draw = message.role === 'user' ? Mine : Theirs;
    const shown = !!store.settings.tokens, at = ui.at?.id === message.id ? ui.at.i : null;
    const space = models.find(one => one.name === message.model)?.context_length;
    const of = [space, shown, at, message.calls?.filter(call => results[call.id]).length, message, message.version, message.running, siblings.length, siblings.indexOf(message), isLast, model,
      ui.editing === message.id, ui.beneath === message.id, isLast && !!runningIn(store.chat)];
    return html`<${Memo} key=${message.id} of=${of} draw=${() => html`<${draw} ...${{message, siblings, isLast, model, results, shown, at, chooseModel, space}}/>`}/>`;
  })}</div>`;
}

// ---- the box ----
function Picker({model, models, choose, admin}) {
  const {memory, isTooLarge, placeOf} = usePlaces(), box = useRef();
  useEffect(() => { (box.current.querySelector('[aria-pressed=true]') ?? box.current.querySelector('button'))?.focus(); }, []);
  const take = one => {
    set({picker: false});
    focusBox();
    takeModel(one, {choose, admin}).then(error => error && say(error));
  };
  return html`<div class="models" role="dialog" aria-label="Model" ref=${box}><ul>${models.map(one => html`<li key=${one.name}>
      <button type="button" aria-pressed=${String(one.name === model?.name)} disabled=${isTooLarge(one)} onClick=${() => take(one)}>
        <b>${one.name}</b><span>${one.need ? bytes(one.need) : ''}</span><small>${aboutModel(one)}</small><small>${placeOf(one)}</small></button></li>`)}</ul>
    <p><small>${memory?.limit ? `${bytes(memory.loaded)} of ${bytes(memory.limit)} in use` : ''}</small><a href="#models">All models</a></p></div>`;
}
function Speed({model, stats}) {
  const used = stats ? Math.min(stats.prompt + stats.tokens, model?.context_length ?? 0) : 0; // the last token may not be read any more
  return html`<${Loading} model=${model}><small class="speed">${stats?.speed ? html`<b>${stats.speed.toFixed(0)}</b> tok/s` : ''}${used && model?.context_length
    ? html`<span class="wide"> · ${number(used)} of ${number(model.context_length)} in context</span>` : ''}</small><//>`;
}

function Composer({model, models, choose, admin}) {
  const file = useRef(), box = useRef(), busy = runningIn(store.chat), shown = last();
  const wrong = ui.wrong && Object.keys(mistakes(store.settings.values ?? {}, true)).length ? ui.wrong : null;
  useLayoutEffect(() => grow(box.current), [ui.draft]);
  useEffect(() => { if (!isPhone() && document.activeElement === document.body) focusBox(); }, []);
  const key = event => {
    if (sends(event)) { event.preventDefault(); send(model?.name); ui.toEnd?.(); }
    if (event.key === 'ArrowUp' && !ui.draft) {
      const mine = path().filter(({message}) => message.role === 'user').at(-1)?.message;
      if (mine) { event.preventDefault(); set({editing: mine.id}); }
    }
  };
  const submit = event => { event.preventDefault(); send(model?.name); ui.toEnd?.(); };
  const without = i => set({images: ui.images.filter((_, k) => k !== i)});
  return html`<form class="composer" onSubmit=${submit}>
    ${wrong && html`<p class="bad" role="alert">${wrong}</p>`}
    ${ui.images.length > 0 && html`<div class="images">${ui.images.map((url, i) => html`<span key=${i}><img src=${url} alt=${`Image ${i + 1} to send`}/>
      <${Act} icon="close" label=${`Remove image ${i + 1}`} onClick=${() => without(i)}/></span>`)}</div>`}
    <textarea id="ask" ref=${box} rows="1" aria-label="Message" placeholder=${model ? `Message ${model.name}` : 'No model here can chat'}
      value=${ui.draft} onInput=${event => set({draft: event.target.value})} onKeyDown=${key}></textarea>
    <div class="under"><${Act} icon="clip" label=${model?.vision ? 'Attach images or text files' : 'Attach text files'} onClick=${() => file.current.click()}/>
      <input ref=${file} type="file" multiple hidden aria-label="Files" onChange=${event => { takeFiles(event.target.files, model); event.target.value = ''; }}/>
      <button type="button" id="picker" class="quiet" aria-haspopup="dialog" aria-expanded=${String(ui.picker)} aria-label=${`Model: ${model?.name ?? 'none'}`}
        onClick=${() => set({picker: !ui.picker})}><span>${model?.name ?? 'no model'}</span><${Icon} name="down"/></button>
      <${Speed} model=${model} stats=${shown?.stats}/>
      ${ui.below && html`<button type="button" class="quiet below" title="To the end" aria-label="To the end" onClick=${() => ui.toEnd()}>
        ${busy && 'new text'}<${Icon} name="end"/></button>`}
      ${busy ? html`<button type="button" class="send" aria-label="Stop" title="Stop (Esc)" onClick=${() => stop(busy.message)}><${Icon} name="stop"/></button>`
        : html`<button class="send" aria-label="Send" title="Send (Enter)" disabled=${!(ui.draft.trim() || ui.images.length) || !model}>
          <${Icon} name="send"/></button>`}
    </div>${ui.picker && html`<${Picker} ...${{model, models, choose, admin}}/>`}</form>`;
}

function Empty({model}) {
  const ask = text => { set({draft: text}); send(model?.name); };
  return html`<div class="empty"><h2>${model ? `Ask ${model.name} something` : 'No model here can chat'}</h2>
    <p>${model ? 'It runs on this machine. Conversations stay in this browser.' : html`Add one in <a href="#models">Models</a>, or continue texts in <a href="#play">Play</a>.`}</p>
    ${model && html`<ul>${EXAMPLES.map(([title, text, about]) => html`<li key=${title}><button type="button" onClick=${() => ask(text)}>
      <small>${title}</small><b>${text}</b><span>${about}</span></button></li>`)}</ul>`}</div>`;
}

function Keys() {
  const box = useRef();
  useEffect(() => { box.current.showModal(); }, []);
  return html`<dialog class="keys" ref=${box} aria-labelledby="keys-title" onClose=${() => set({keys: false})}><header><h2 id="keys-title">Keys</h2>
      <${Act} icon="close" label="Close" onClick=${() => box.current.close()}/></header>
    <dl>${KEYS.map(([key, does]) => html`<dt>${key.split(' ').map(one => html`<kbd>${one}</kbd> `)}</dt><dd>${does}</dd>`)}</dl>
    <p><${Switch} on=${!store.settings.noLetters} flip=${() => change({noLetters: !store.settings.noLetters})}>Single letters act outside text boxes<//></p></dialog>`;
}

const Legend = () => html`<span class="legend" role="img" aria-label="Colours of tokens: plain from 50 %, then ever stronger below 50, 20 and 5 %">
  ${['likely', '< 50 %', '< 20 %', '< 5 %'].map((text, i) => html`<span class=${`t p${i}`} aria-hidden="true">${text}</span>`)}</span>`;

// ---- the view ----
const version = by => {
  const {message, siblings} = path().at(-1) ?? {};
  if (siblings?.length > 1) pick(siblings[(siblings.indexOf(message) + by + siblings.length) % siblings.length]);
};
function escape() {
  if (document.querySelector('dialog[open]')) return;
  if (ui.picker) { set({picker: false}); document.getElementById('picker')?.focus(); }
  else if (ui.drawer) { set({drawer: false}); document.querySelector('.burger').focus(); }
  else if (runningIn(store.chat)) stop(runningIn(store.chat).message);
  else if (ui.panel) closePanel();
}
function press(event) {
  if (event.isComposing || (event.key === 'Escape' && event.target.type === 'search' && event.target.value)) return; // it ends a word, or empties a search
  if (event.key === 'Escape') return escape();
  if (store.settings.noLetters || event.ctrlKey || event.metaKey || event.altKey || event.target.closest('input, textarea, select, dialog')) return;
  const act = {
    '/': () => { if (isPhone()) set({drawer: true}); requestAnimationFrame(() => document.getElementById('find').focus()); },
    n: fresh, t: flip, ',': () => set({panel: ui.panel === 'settings' ? null : 'settings'}), '?': () => set({keys: true}),
    '[': () => version(-1), ']': () => version(1),
  }[event.key];
  if (act) { event.preventDefault(); act(); }
}
const follow = () => { const id = location.hash.split('/')[1]; if (id && id !== store.chat?.id) show({id}); };
const leave = event => { if (ui.picker && !event.target.closest('.models, #picker')) set({picker: false}); };

export default function Chat({model: chosen, models, choose: chooseModel, views, admin, refresh}) {
  const [, again] = useState(0), able = models.filter(one => one.verbs?.includes('generate') && one.template !== false);
  const model = able.find(one => one.name === chosen?.name) ?? able[0] ?? null, title = store.chat?.title || 'New chat', side = useRef();
  useEffect(() => subscribe(() => again(n => n + 1)), []);
  useEffect(() => { start(); }, []);
  useEffect(() => { document.title = `${harmless(store.chat?.title || 'Chat')} · Stretto`; }, [title]);
  useEffect(() => {
    const acts = Object.entries({keydown: press, click: leave, hashchange: follow, dragover: over, drop, paste});
    for (const [name, act] of acts) addEventListener(name, act);
    return () => { for (const [name, act] of acts) removeEventListener(name, act); };
  }, []);
  const draw = () => { set({drawer: !ui.drawer}); if (ui.drawer) requestAnimationFrame(() => side.current.focus({preventScroll: true})); };
  current = model;
  const {panel} = ui, message = store.chat && path().map(one => one.message).filter(one => one.role === 'assistant').at(-1), on = !!store.settings.tokens;
  return html`<div class=${`body${ui.drawer ? ' opened' : ''}${panel ? ' has-panel' : ''}`}><${Sidebar} ...${{views, fresh, say}} focus=${side} go=${show}/>
    ${ui.drawer && html`<div class="veil" onClick=${() => set({drawer: false})}></div>`}
    <div class="chat" inert=${ui.drawer}><div class="head">
        <${Act} icon="menu" label="Conversations and views" class="icon burger" aria-expanded=${String(ui.drawer)} aria-controls="side" onClick=${draw}/>
        <h1>${harmless(title)}</h1>${on && html`<${Legend}/>`}<${Switch} on=${on} flip=${flip}>Tokens<//>
        ${store.messages.size > 0 && html`<${Act} icon="tree" label="All versions" aria-expanded=${String(panel === 'versions')}
          onClick=${() => set({panel: panel === 'versions' ? null : 'versions'})}/>`}
        <button type="button" class="quiet" id="settings" aria-label="Settings" aria-expanded=${String(panel === 'settings')}
          onClick=${() => set({panel: panel === 'settings' ? null : 'settings'})}><${Icon} name="dials"/><span class="word">Settings</span></button>
        <button type="button" class="icon help" aria-label="Keys" title="Keys (?)" onClick=${() => set({keys: true})}>?</button></div>
      ${store.ready && store.chat && html`<${Scroll} id=${store.chat.id}>${store.messages.size ? html`<${Messages} key=${store.chat.id} ...${{chooseModel}} model=${model?.name} models=${able}/>`
        : html`<${Empty} model=${model}/>`}<//>
      <${Composer} ...${{model, admin}} models=${able} choose=${chooseModel}/>`}</div>
    ${panel && html`<${Panel} key=${panel} name=${panel} at=${ui.at} choose=${choose} close=${closePanel}>${panel === 'token'
      ? html`<${TokenPanel} model=${model} at=${ui.at} choose=${choose} beneath=${(message, n) => html`<${Beneath} choose=${chooseModel} ...${{message, n}}/>`} forked=${at => { set({at}); say('Forked into a new version'); }}/>`
      : panel === 'versions' ? html`<${Tree}/>` : html`<${Settings} ...${{model, message, refresh, admin, say}} models=${able} choose=${chooseModel}/>`}<//>`}
    ${ui.keys && html`<${Keys}/>`}<p class="hidden" role="status">${ui.finished}</p><p class="said-live" role="status">${ui.said}</p></div>`;
}

async function start() {
  if (!store.ready) await load();
  if (!store.chat) {
    const id = location.hash.split('/')[1];
    if (!(id && await open(id))) begin();
    else resume();
    resumeElsewhere();
  }
  remember(store.messages.size ? store.chat.id : null);
  changed();
}
