// The shell: navigation, the model chooser, the key dialog; a view's module is loaded when it is first shown.
import {html, render, useCallback, useEffect, useErrorBoundary, useRef, useState} from './vendor/preact.js';
import {get, key} from './api.js';
import {live} from './live.js';
import {Field, Model, Theme, number, useLive} from './ui.js';

const VIEWS = {chat: 'Chat', play: 'Play', cells: 'Cells', parallel: 'Parallel', models: 'Models', load: 'Load', compare: 'Compare'};
const ABOUT = {
  play: 'A request as a form, with every option: how a prompt or a conversation is continued, token by token, and what might have come instead.',
  cells: 'The memory of a model, a square for each position it holds: what texts share, and what a next request need not read again.',
  parallel: 'Several tokens at one position, carried on together: where continuations part, and where they meet again.',
  models: 'What is in memory, what is on disk and what would fit; and forms for models that do not write texts.',
  load: 'What the server does now and did in the last minutes: speed, queue, memory, requests and its log.',
  compare: 'One prompt, two models or two settings, side by side: from which token on they differ, and which is faster.',
};
const shown = () => { const name = location.hash.slice(1).split('/')[0]; return name in VIEWS ? name : 'chat'; };

function useHash() {
  const [view, go] = useState(shown());
  useEffect(() => {
    const change = () => go(shown());
    addEventListener('hashchange', change);
    return () => removeEventListener('hashchange', change);
  }, []);
  useEffect(() => { document.title = `${VIEWS[view]} · Stretto`; }, [view]);
  return view;
}

function App() {
  const view = useHash(), [connected, setConnected] = useState(false);
  useEffect(() => live.subscribe(state => setConnected(state.connected)), []);
  const [list, setList] = useState(null), [error, setError] = useState(null);
  const [name, choose] = useState(localStorage.getItem('stretto.model'));
  const refresh = useCallback(() => get('/stretto/models').then(found => { setList(found); setError(null); }, setError), []);
  useEffect(() => { refresh(); }, [connected]);
  const models = list?.models ?? [], model = models.find(one => one.name === name) ?? models[0] ?? null;
  useEffect(() => { if (model) live.want({model: model.name}); }, [model?.name]);
  const pick = name => { localStorage.setItem('stretto.model', name); choose(name); };
  const enter = () => { key.declined = false; live.retry(); refresh(); };
  const skip = event => { event.preventDefault(); document.getElementById('main').focus(); };
  const props = {model, models, live, refresh, choose: pick, admin: list?.admin ?? false, views: VIEWS};
  return html`<${Model.Provider} value=${model}>
    <a class="skip" href="#main" onClick=${skip}>Skip to the view</a>
    <header><h1>Stretto</h1>
      <nav aria-label="Views">${Object.entries(VIEWS).map(([id, text]) => html`
        <a key=${id} href=${`#${id}`} aria-current=${view === id ? 'page' : null}>${text}</a>`)}</nav>
      ${model && view !== 'chat' && html`<span class="chooser"><label for="model">Model</label> <select id="model" value=${model.name}
        onChange=${event => pick(event.target.value)}>
        ${models.map(one => html`<option key=${one.name} value=${one.name}>${one.name}</option>`)}</select></span>`}
      <${Now}/><${Theme}/></header>
    ${error && html`<div class="notice" role="alert">${error.status === 401 ? 'This server needs an API key.' : error.message}
      <button type="button" onClick=${enter}>${error.status === 401 ? 'Enter a key' : 'Try again'}</button></div>`}
    <main id="main" tabindex="-1" class=${view === 'chat' ? 'chatting' : null}>${view in ABOUT && html`<p class="about">${ABOUT[view]}</p>`}
      ${(list || !error) && html`<${View} key=${view} name=${view} ...${props}/>`}</main>
    <${KeyDialog} onKey=${enter}/><//>`;
}

function Now() { // the live line
  const {connected, problem, stats} = useLive();
  const said = !connected ? problem ?? 'not connected' : !stats ? 'connected'
    : `${number(stats.tokens_per_second ?? 0)} tok/s · ${stats.running ?? 0} running, ${stats.waiting ?? 0} waiting`;
  return html`<span class=${connected ? 'now' : 'now lost'} id="now">${said}</span>`;
}

function View({name, ...props}) {
  const [part, set] = useState(null), [tries, again] = useState(0), [error, reset] = useErrorBoundary();
  useEffect(() => {
    let current = true;
    import(`./${name}.js${tries ? `?${tries}` : ''}`).then(
      module => { if (current) set({view: module.default}); }, () => { if (current) set({failed: true}); });
    return () => { current = false; };
  }, [tries]);
  const retry = () => { reset(); set(null); again(tries + 1); };
  if (error || part?.failed) {
    const said = error ? `This view has failed: ${error.message}` : 'This view could not be loaded.';
    return html`<section class="wide"><h2>${VIEWS[name]}</h2><p role="alert">${said}</p>
      <button type="button" onClick=${retry}>Try again</button></section>`;
  }
  return part ? html`<${part.view} ...${props}/>` : html`<section class="wide" aria-busy="true"><h2>${VIEWS[name]}</h2></section>`;
}

function KeyDialog({onKey}) {
  const dialog = useRef(), [reason, say] = useState(''), [value, set] = useState(''), resolve = useRef(null);
  const answer = value => { resolve.current?.(value); resolve.current = null; };
  useEffect(() => {
    key.ask = reason => new Promise(done => {
      resolve.current = done;
      say(reason);
      set('');
      if (!dialog.current.open) dialog.current.showModal();
    });
    live.retry();
  }, []);
  const close = () => { // also by Escape
    if (!resolve.current) return;
    key.clear();
    key.declined = true;
    answer(null);
  };
  const submit = event => {
    event.preventDefault();
    if (!value.trim()) return;
    key.set(value.trim());
    answer(value.trim());
    dialog.current.close();
    onKey();
  };
  return html`<dialog ref=${dialog} aria-labelledby="key-title" onClose=${close}><form onSubmit=${submit}>
    <h2 id="key-title">API key</h2>
    <${Field} label="Key" help="Kept until this tab is closed." error=${reason}>${(id, described) => html`
      <input id=${id} type="password" autocomplete="off" aria-describedby=${described} value=${value}
        onInput=${event => set(event.target.value)}/>`}<//>
    <div class="row"><button class="primary">Use this key</button>
      <button type="button" onClick=${() => dialog.current.close()}>Cancel</button></div></form></dialog>`;
}

render(html`<${App}/>`, document.getElementById('app'));
