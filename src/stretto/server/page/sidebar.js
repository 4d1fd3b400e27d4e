// The conversations of this browser: found, renamed, pinned, removed, taken out and brought in.
import {html, useEffect, useRef, useState} from './vendor/preact.js';
import {runningIn} from './answering.js';
import {bringIn, edit, exported, forget, holding, markdownOf, store} from './chats.js';
import {Act, Icon} from './icons.js';
import {harmless} from './prose.js';
import {Theme} from './ui.js';

const DAY = 86_400_000, SEARCH_MS = 150;
function ageOf(time) {
  const midnight = new Date().setHours(0, 0, 0, 0);
  return time >= midnight ? 'Today' : time >= midnight - DAY ? 'Yesterday' : time >= midnight - 6 * DAY ? 'This week' : 'Earlier';
}

export function Sidebar({views, go, fresh, focus, say}) {
  const [query, search] = useState(''), [inside, setInside] = useState(null), [renaming, rename] = useState(null), words = query.trim().toLowerCase();
  useEffect(() => { // titles at once, texts a moment later
    let current = true;
    setInside(null);
    const timer = words && setTimeout(() => holding(words).then(all => { if (current) setInside(all); }), SEARCH_MS);
    return () => { current = false; clearTimeout(timer); };
  }, [words]);
  const found = store.chats.filter(one => one.title.toLowerCase().includes(words) || inside?.has(one.id));
  const groups = Map.groupBy(found, one => one.pinned ? 'Pinned' : ageOf(one.changed));
  const names = ['Pinned', 'Today', 'Yesterday', 'This week', 'Earlier'].filter(name => groups.has(name));
  const remove = chat => {
    if (!confirm(`Delete “${harmless(chat.title)}”?`)) return;
    forget([chat]);
    focus.current.focus({preventScroll: true}); // the button is gone
  };
  return html`<div class="side" id="side" tabindex="-1" role="navigation" aria-label="Conversations" ref=${focus}>
    <div class="find"><label><${Icon} name="search"/><input id="find" type="search" placeholder="Search" aria-label="Search conversations"
        value=${query} onInput=${event => search(event.target.value)}/></label>
      <${Act} icon="plus" label="New chat" onClick=${fresh}/></div>
    <div class="views">${Object.entries(views).map(([id, name]) => html`<a key=${id} href=${`#${id}`}
      aria-current=${id === 'chat' ? 'page' : null}>${name}</a>`)}<${Theme}/></div>
    <div class="list">${names.map(name => html`<h2 key=${name}>${name}</h2><ul>${groups.get(name).map(chat => html`
        <li key=${chat.id}>${renaming === chat.id ? html`<${Rename} chat=${chat} end=${() => rename(null)}/>` : html`
          <button type="button" class="open" aria-current=${chat.id === store.chat?.id ? 'true' : null} title=${harmless(chat.title)}
            onClick=${() => go(chat)} onDblClick=${() => rename(chat.id)}>${runningIn(chat) && html`<i class="live" role="img" aria-label="Being answered"></i>`}${harmless(chat.title) || 'New chat'}</button>
          <${Act} icon="edit" label=${`Rename ${chat.title}`} onClick=${() => rename(chat.id)}/>
          <${Act} icon="pin" label=${`${chat.pinned ? 'Unpin' : 'Pin'} ${chat.title}`} aria-pressed=${String(!!chat.pinned)}
            onClick=${() => edit(chat, {pinned: !chat.pinned})}/>
          <${Act} icon="bin" label=${`Delete ${chat.title}`} onClick=${() => remove(chat)}/>`}</li>`)}</ul>`)}
      ${!found.length && html`<p class="none">${!query ? 'Conversations are listed here.' : inside ? `No conversation has “${query}”.` : 'Searching …'}</p>`}</div>
    <${Files} say=${say}/></div>`;
}

const save = (text, name, type) => {
  const link = document.createElement('a'), url = URL.createObjectURL(new Blob([text], {type}));
  Object.assign(link, {href: url, download: name}).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
};
const nameOf = chat => (chat.title || 'chat').replace(/[^\p{L}\p{N}]+/gu, '-').slice(0, 40);

const imported = n => n === 1 ? '1 conversation imported' : `${n} conversations imported`;
function Files({say}) { // what can be done with all of them
  const file = useRef(), {chat, chats} = store;
  const take = async ([one]) => {
    if (!one) return;
    try { say(imported(await bringIn(await one.text()))); } catch (error) { say(`Not imported: ${error.message}`); }
  };
  const removeAll = () => { if (confirm(`Delete all ${chats.length} conversations of this browser?`)) forget(chats); };
  return html`<details class="kept"><summary>${store.problem ?? 'Kept in this browser.'}<span>Export, import</span></summary>
    <button type="button" class="quiet" disabled=${!store.messages.size} onClick=${() => save(markdownOf(), `${nameOf(chat)}.md`, 'text/markdown')}>
      Export this one as Markdown</button>
    <button type="button" class="quiet" disabled=${!store.messages.size}
      onClick=${async () => save(await exported([chat]), `${nameOf(chat)}.json`, 'application/json')}>Export this one as JSON</button>
    <button type="button" class="quiet" disabled=${!chats.length}
      onClick=${async () => save(await exported(chats), 'chats.json', 'application/json')}>Export all as JSON</button>
    <button type="button" class="quiet" onClick=${() => file.current.click()}>Import …</button>
    <input ref=${file} type="file" accept=".json,.md,application/json,text/markdown" aria-label="File to import" hidden
      onChange=${event => { take(event.target.files); event.target.value = ''; }}/>
    <button type="button" class="quiet bad" disabled=${!chats.length} onClick=${removeAll}>Delete all</button></details>`;
}

function Rename({chat, end}) {
  const box = useRef();
  useEffect(() => { box.current.focus(); box.current.select(); }, []);
  const done = () => {
    const title = box.current?.value.trim(); // leaving the box ends it too
    if (title && title !== chat.title) edit(chat, {title});
    end();
  };
  const key = event => {
    if (event.key === 'Enter' && !event.isComposing) done();
    if (event.key === 'Escape') { event.stopPropagation(); end(); }
  };
  return html`<input ref=${box} class="rename" aria-label="Title" defaultValue=${chat.title} onKeyDown=${key} onBlur=${done}/>`;
}
