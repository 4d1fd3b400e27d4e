// Models: what is here and what fits; pull, load, unload, inspect; the machine. Forms of other model types are in tasks.js.
import {html, useEffect, useState} from './vendor/preact.js';
import {events, get, post} from './api.js';
import {Bar, Tabs, bytes, number, useLive} from './ui.js';
import {Input} from './forms.js';
import Tasks from './tasks.js';

const TABS = {here: 'Served', pull: 'Pull', use: 'Try', machine: 'Machine'};
const DOING = {load: 'loading …', unload: 'unloading …', remove: 'removing …'};
const ADMIN_ONLY = 'Pulling, loading and unloading need an admin key.';

export default function Models(props) {
  const [tab, show] = useState('here'), {memory, models = {}} = useLive().stats ?? {};
  const states = Object.entries(models).flatMap(([name, one]) => [name, one.loaded, one.loading]).join();
  useEffect(() => { props.refresh(); }, [states]); // requests load models too
  return html`<section class="wide"><h2>Models</h2><${Tabs} label="Parts of this view" tabs=${TABS} current=${tab} onChange=${show}/>
    ${memory?.limit && html`<p class="soft">${bytes(memory.loaded)} of ${bytes(memory.limit)} for models in use
      <${Bar} value=${memory.loaded} max=${memory.limit} label="Memory for models"/></p>`}
    ${!props.admin && props.models.length > 0 && tab !== 'use' && html`<p class="soft">${ADMIN_ONLY}</p>`}
    ${{here: () => html`<${Here} ...${props}/>`, pull: () => props.admin && html`<${Pull} ...${props}/>`,
      use: () => html`<${Tasks} ...${props}/>`, machine: () => html`<${Machine}/>`}[tab]()}</section>`;
}

function useAnswer(path) { // [answer, error] of a GET
  const [state, set] = useState([null, null]);
  useEffect(() => {
    let current = true;
    set([null, null]);
    get(path).then(answer => current && set([answer, null]), error => current && set([null, error.message]));
    return () => { current = false; };
  }, [path]);
  return state;
}

// -- the models of the server --

function Here({models, model, admin, refresh, choose}) {
  const {models: now = {}} = useLive().stats ?? {};
  const [busy, begin] = useState(null), [problem, fail] = useState(null), [inside, look] = useState(null);
  const act = (verb, name) => async () => {
    begin({verb, name});
    fail(null);
    try { await post(`/stretto/models/${verb}`, {model: name}); } catch (error) { fail({name, text: error.message}); }
    begin(null);
    refresh();
  };
  return html`<ul class="cards">${models.map(one => html`<li key=${one.name}>
    <h3>${one.name}</h3><p>${facts(one)}</p>
    <div class="row"><span class=${one.loaded ? 'good' : 'soft'}>${busy?.name === one.name ? DOING[busy.verb]
      : one.loading ? 'loading …' : one.loaded ? `loaded, ${one.backend} on ${one.device}` : 'not loaded'}</span>
      ${one.name !== model?.name && html`<button type="button" onClick=${() => choose(one.name)}>Choose</button>`}
      ${admin && html`<button type="button" disabled=${!!busy} onClick=${act(one.loaded ? 'unload' : 'load', one.name)}>
        ${one.loaded ? 'Unload' : 'Load'}</button>
      <button type="button" aria-expanded=${inside === one.name} onClick=${() => look(inside !== one.name && one.name)}>Inspect</button>
      ${one.added && html`<button type="button" disabled=${!!busy} onClick=${act('remove', one.name)}>Remove</button>`}`}</div>
    ${now[one.name]?.progress && html`<${Loading} name=${one.name} ...${now[one.name].progress}/>`}
    ${problem?.name === one.name && html`<p class="bad" role="alert">${problem.text}</p>`}
    ${inside === one.name && html`<${Inspect} key=${`${one.name} ${one.loaded}`} name=${one.name} refresh=${refresh}/>`}</li>`)}</ul>`;
}

function Loading({name, done, total}) {
  return html`<progress aria-label=${`Loading ${name}`} max=${total} value=${done}></progress>
    <p class="soft num">${bytes(done)} of about ${bytes(total)} in memory</p>`;
}

function facts(one) {
  const formats = Object.keys(one.formats ?? {});
  const count = one.parameters < 1e7 ? `${number(one.parameters / 1e3)} k` : `${number(one.parameters / 1e6)} M`;
  return [one.architecture, one.parameters > 0 && `${count} parameters`, formats.join(', '), one.need && `${bytes(one.need)} when loaded`,
    one.context_length > 0 && `${number(one.context_length)} tokens of context`, one.vision && 'takes images',
    one.thinking && 'reasons', one.verbs?.length > 0 && `can ${one.verbs.join(', ')}`, one.license].filter(Boolean).join(' · ');
}

function Inspect({name, refresh}) {
  const [said, say] = useState(''), plain = name.replace(/[^A-Za-z0-9.-]+/g, '-').slice(-40).replace(/^\W+/, '');
  const copy = backend => async () => {
    try {
      await post('/stretto/models/copy', {model: name, backend, name: `${plain}-${backend}`});
      say(`Served as ${plain}-${backend}.`);
      refresh();
    } catch (error) { say(error.message); }
  };
  const [found, error] = useAnswer(`/stretto/models/inspect?model=${encodeURIComponent(name)}`);
  if (!found) return html`<p class=${error ? 'bad' : 'soft'} role="status">${error ?? 'reading its file …'}</p>`;
  return html`<div class="inspect"><p>${found.words}</p>
    <${Parts} title="Memory when loaded" parts=${found.memory}/><${Parts} title="Weights by part" parts=${found.parts}/>
    <${Parts} title="Weights by format" parts=${found.formats}/>
    ${found.backends.length > 0 && html`<h4>Backends</h4><ul>${found.backends.map(one => html`<li>
        <b>${one.backend} on ${one.device}</b>: ${one.state}${one.tokens_per_second ? `, ${number(one.tokens_per_second)} tokens a second` : ''}${
        one.reason && `; ${one.reason}`} ${one.state === 'possible' && html`<button type="button"
          onClick=${copy(one.backend)}>Serve with ${one.backend}</button>`}</li>`)}</ul><p role="status">${said}</p>`}
    ${found.template && html`<details><summary>Chat template</summary><pre tabindex="0">${found.template}</pre></details>`}
    ${Object.keys(found.metadata).length > 0 && html`<details><summary>Metadata</summary><${Facts} rows=${found.metadata}/></details>`}</div>`;
}

const Facts = ({rows}) => html`<dl>${Object.entries(rows).map(([key, value]) => html`<dt>${key}</dt><dd>${String(value)}</dd>`)}</dl>`;

function Parts({title, parts}) {
  const rows = Object.entries(parts).filter(([, size]) => size > 0), most = Math.max(1, ...rows.map(([, size]) => size));
  return rows.length > 0 && html`<h4>${title}</h4><table class="parts"><tbody>${rows.map(([part, size]) => html`<tr>
    <th scope="row">${part}</th><td><${Bar} value=${size} max=${most} label=${`${title}: ${part}`}/></td>
    <td class="num">${bytes(size)}</td></tr>`)}</tbody></table>`;
}

// -- pulling: goes on while other views are shown --

let pull = null, changed = () => {};

async function begin(source, name, refresh) {
  const abort = new AbortController(), tell = more => { pull = {...pull, ...more}; changed(); };
  pull = {source, abort, running: true, status: 'starting'};
  changed();
  try {
    const body = {source, ...(name && {name})};
    for await (const event of events('/stretto/models/pull', {method: 'POST', body, signal: abort.signal})) tell(event);
    tell({running: false});
  } catch (error) {
    tell({running: false, error: error.name === 'AbortError' ? 'stopped; nothing of it is left' : error.message});
  }
  refresh();
}

function Pull({models, refresh}) {
  const [, again] = useState(0), [source, setSource] = useState(''), [name, setName] = useState('');
  useEffect(() => { changed = () => again(n => n + 1); return () => { changed = () => {}; }; }, []);
  const [found, error] = useAnswer(`/stretto/catalogue?${models.length}`);
  const submit = event => { event.preventDefault(); begin(source.trim(), name.trim(), refresh); };
  return html`${pull && html`<${Progress} ...${pull}/>`}
    <form onSubmit=${submit}><div class="fields">
      <${Input} label="Source" help="A name from below, or hf:org/repo:Q4_K_M" required maxlength="256"
        value=${source} set=${setSource}/>
      <${Input} label="Name" help="In requests; the source, if left empty" pattern="[A-Za-z0-9][A-Za-z0-9._\\-]*" maxlength="64"
        value=${name} set=${setName}/></div>
      <button class="primary" disabled=${pull?.running}>Pull</button></form>
    ${error && html`<p class="bad" role="alert">${error}</p>`}
    ${found && html`<p class="soft">${found.disk_free != null && `${bytes(found.disk_free)} are free on the disk.`}</p>
      <ul class="cards">${found.models.map(one => html`<li key=${one.source}><h3>${one.source}</h3>
        <p>${one.summary} · ${bytes(one.bytes)} · ${facts(one)}</p>
        <div class="row"><span class=${one.fits ? 'soft' : 'bad'}>${one.served ? `served as ${one.served}`
          : `${one.here ? 'on the disk' : 'not here'}, ${one.fits ? 'fits' : 'does not fit'}`}</span>
          ${!one.served && html`<button type="button" disabled=${pull?.running} aria-label=${`${one.here ? 'Serve' : 'Pull'} ${one.source}`}
            onClick=${() => begin(one.source, '', refresh)}>${one.here ? 'Serve' : 'Pull'}</button>`}</div></li>`)}</ul>`}`;
}

function Progress({source, status, completed, total, running, error, done, abort}) {
  return html`<div class="pull"><p role="status" class=${error && 'bad'}>${done ? `${source} is served as ${done}.` : `${source}: ${error ?? status}`}</p>
    ${running && html`<progress aria-label="Progress" max=${total || 1} value=${total ? completed : null}></progress>
      <div class="row"><span class="num">${total ? `${bytes(completed)} of ${bytes(total)}` : ''}</span>
        <button type="button" onClick=${() => abort.abort()}>Stop</button></div>`}</div>`;
}

// -- the machine --

function Machine() {
  const [found, error] = useAnswer('/stretto/hardware');
  if (!found) return html`<p class=${error ? 'bad' : 'soft'} role="status">${error ?? 'reading …'}</p>`;
  const {bandwidth: read, integer_peak: peak} = found, unknown = 'not measured; run stretto devices';
  const speed = (rate, unit) => rate ? `${number(rate.one)} ${unit} by one core, ${number(rate.all)} ${unit} by all` : unknown;
  const cache = one => `${one.name} ${one.count} × ${number(one.nbytes / 1024)} KiB`;
  const rows = {Processor: `${found.cpu} (${found.architecture})`, Cores: `${found.cores_usable} usable of ${found.cores_logical}`,
    Kernels: found.kernels, 'Instruction sets': found.instruction_sets.join(', '), Caches: found.caches.map(cache).join(', '),
    Memory: `${bytes(found.memory_total ?? 0)}, ${bytes(found.memory_free ?? 0)} free`, 'Memory bandwidth': speed(read?.memory, 'GB/s'),
    'Bandwidth, small model': speed(read?.model, 'GB/s'), 'Arithmetic (int8)': speed(peak?.rate, 'GMAC/s'),
    ...Object.fromEntries(found.gpus.map((gpu, i) => [`GPU ${i}`, `${gpu.name}, ${bytes(gpu.memory_total ?? 0)}`]))};
  return html`<${Facts} rows=${rows}/>
    <p class="soft">The speeds that backends reached with a model are under Inspect.</p>`;
}
