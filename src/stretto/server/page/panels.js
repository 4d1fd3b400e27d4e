// The panel beside a conversation: the settings, or one token with what might have come instead.
import {html, useEffect, useRef, useState} from './vendor/preact.js';
import {fork, forkText, idsUpTo, requestOf, tokens} from './answering.js';
import {post} from './api.js';
import {change, lead, path, store} from './chats.js';
import {curlCode, libraryCode, openaiCode} from './copying.js';
import {Act, Icon} from './icons.js';
import {OPTIONS, OptionForm, controlOf, mistakes} from './options.js';
import {harmless} from './prose.js';
import {TOOLS} from './toolbox.js';
import {probability} from './tokens.js';
import {Bar, Copy, bytes, number, percent, useLive, visible} from './ui.js';

// ---- models ----
// By the live figures, which are newer than the list: where a model is, or whether it would fit.
export function usePlaces() {
  const {memory, models: now = {}} = useLive().stats ?? {}, isLoaded = one => now[one.name]?.loaded ?? one.loaded;
  const isTooLarge = one => !!memory?.limit && one.need > memory.limit;
  const placeOf = one => {
    if (isLoaded(one) || !memory?.limit) return isLoaded(one) ? 'in memory' : '';
    if (isTooLarge(one)) return `needs ${bytes(one.need)} of ${bytes(memory.limit)}`;
    return one.need > memory.limit - memory.loaded ? 'fits in place of others' : 'fits';
  };
  return {memory, isTooLarge, placeOf};
}
export const aboutModel = one => [one.parameters >= 1e6 && `${number(one.parameters / 1e6)} M`,
  Object.keys(one.formats ?? {}).find(name => !/^F32$/.test(name)), one.vision ? 'text and images' : 'text', one.thinking && 'reasons'].filter(Boolean).join(' · ');
// Answers with what has kept the model from being loaded, if anything has.
export async function takeModel(one, {choose, admin}) {
  choose(one.name);
  if (admin && !one.loaded) return post('/stretto/models/load', {model: one.name}).then(() => null, error => error.message);
}
export function Loading({model, children}) {
  const progress = useLive().stats?.models?.[model?.name]?.progress;
  if (!progress) return children;
  const share = Math.min(1, progress.done / progress.total);
  return html`<span class="loading"><${Bar} value=${share} label=${`Loading ${model.name}`}/><small>loading ${Math.round(100 * share)} %</small></span>`;
}

// ---- settings ----
const DIALS = {
  temperature: ['Temperature', 2, .05, 'How freely it chooses. 0 always takes the likeliest token.'],
  top_p: ['Top-p', 1, .01, 'Only the likeliest tokens that together make up this share.'],
  min_p: ['Min-p', .5, .01, 'Drops tokens less likely than this share of the best one.'],
  repetition_penalty: ['Repetition', 2, .01, 'Makes what was already said less likely. 1 is off.'],
};
const OWN = 'Model’s own', OF_THE_PANEL = [...Object.keys(DIALS), 'max_tokens', 'n']; // an answer is one text

function ModelSetting({model, models, choose, admin, say}) {
  const {isTooLarge, placeOf} = usePlaces();
  const take = event => takeModel(models.find(one => one.name === event.target.value), {choose, admin}).then(error => error && say(error));
  return model && html`<div class="setting"><label for="model-setting">Model</label>
    <select id="model-setting" value=${model.name} aria-describedby="model-about" onChange=${take}>${models.map(one => html`
      <option key=${one.name} value=${one.name} disabled=${isTooLarge(one)}>${[one.name, one.need && bytes(one.need), placeOf(one)].filter(Boolean).join(' · ')}</option>`)}</select>
    <small id="model-about">${aboutModel(model)}</small><${Loading} model=${model}/></div>`;
}

const Wrong = ({children}) => children && html`<small class="bad" role="alert">${children}</small>`;
function Dial({name, value, own, set, wrong}) {
  const [label, max, step, about] = DIALS[name], shown = value ?? own;
  const put = event => set(name, event.target.value === '' ? undefined : Number(event.target.value));
  return html`<div class="dial"><label for=${name}>${label}</label>
    <input class="value" type="number" aria-label=${`${label}, value`} aria-invalid=${wrong ? 'true' : null} min="0" max=${max} step=${step} value=${shown} onInput=${put}/>
    <input type="range" id=${name} min=${name === 'repetition_penalty' ? 1 : 0} max=${max} step=${step} value=${shown}
      aria-describedby=${`${name}-about`} onInput=${put}/>
    <small id=${`${name}-about`}>${about} ${value != null && value !== own && html`
      <button type="button" class="link" onClick=${() => set(name, undefined)}>Back to the model’s ${own}</button>`}</small>
    <${Wrong}>${wrong}<//></div>`;
}

export const Switch = ({on, flip, children}) => html`
  <button type="button" role="switch" class="switch" aria-checked=${String(!!on)} onClick=${flip}><i></i><span>${children}</span></button>`;

function Naming({keep}) { // a preset; without a name it is not kept
  const box = useRef();
  useEffect(() => { box.current.focus(); }, []);
  return html`<form class="pair" onSubmit=${event => { event.preventDefault(); keep(box.current.value.trim()); }}
      onKeyDown=${event => { if (event.key === 'Escape') { event.stopPropagation(); keep(''); } }}>
    <input ref=${box} aria-label="Name of the preset" placeholder="Name" autocomplete="off"/><button class="plain">Save</button></form>`;
}

export function Settings({model, models, message, refresh, choose: chooseModel, admin, say}) {
  useEffect(() => { refresh(); }, []); // a loaded model tells its own values
  const {values = {}, system = '', tools = {}, presets = {}, preset} = store.settings, [naming, setNaming] = useState(false);
  const set = (name, value) => {
    if (message) message.param = null; // what the server has refused is being changed
    change({values: {...values, [name]: value}, preset: null});
  };
  const refused = controlOf(message?.param), wrong = name => refused === name ? message.error : null;
  const choose = name => change({preset: name, ...(name === OWN ? {values: {}, system: ''} : presets[name])});
  const keep = name => {
    if (name) change({presets: {...presets, [name]: {values, system}}, preset: name});
    setNaming(false);
    requestAnimationFrame(() => document.getElementById('preset')?.focus());
  };
  const forget = () => change({presets: Object.fromEntries(Object.entries(presets).filter(([name]) => name !== preset)), preset: null});
  const form = {values, set, chat: true, without: OF_THE_PANEL,
    error: refused && !OF_THE_PANEL.includes(refused) ? {param: refused, message: message.error} : null};
  const isOwn = !system && Object.values(values).every(value => value == null || value === ''), now = preset ?? (isOwn ? OWN : '');
  return html`<${ModelSetting} ...${{model, models, admin, say}} choose=${chooseModel}/>
    <div class="setting"><label for="preset">Preset</label><span class="pair">
      <select id="preset" value=${now} onChange=${event => choose(event.target.value)}>
        ${!now && html`<option value="">Changed</option>`}
        ${[OWN, ...Object.keys(presets)].map(name => html`<option key=${name} value=${name}>${name}</option>`)}</select>
      ${preset in presets ? html`<button type="button" class="plain" onClick=${forget}>Delete</button>`
        : html`<button type="button" class="plain" aria-expanded=${String(naming)} onClick=${() => setNaming(!naming)}>Save as…</button>`}</span>
      ${naming && html`<${Naming} keep=${keep}/>`}</div>
    <div class="setting"><label for="system">System message</label>
      <textarea id="system" rows="3" placeholder="Who it should be, and how it should answer" value=${system}
        onInput=${event => change({system: event.target.value, preset: null})}></textarea></div>
    <h3>Sampling</h3>
    ${Object.keys(DIALS).map(name => html`<${Dial} key=${name} name=${name} value=${values[name]} set=${set} wrong=${wrong(name)}
      own=${model?.defaults?.[name] ?? OPTIONS[name].fallback}/>`)}
    <div class="dial"><label for="length">Length</label>
      <input class="value" id="length" type="number" min="1" step="1" placeholder="no limit" value=${values.max_tokens ?? ''} aria-describedby="length-about" aria-invalid=${wrong('max_tokens') ? 'true' : null}
        onInput=${event => set('max_tokens', event.target.value)}/><small id="length-about">Tokens at most; without it, as many as the context holds.</small>
      <${Wrong}>${wrong('max_tokens')}<//></div>
    <${OptionForm} ...${form} parts=${{options: 'More options', grammar: 'Structured output'}}/>
    <h3>Tools</h3>
    ${Object.entries(TOOLS).map(([name, tool]) => html`<div class="setting"><${Switch} on=${tools[name]}
      flip=${() => change({tools: {...tools, [name]: !tools[name]}})}>${name}<//><small>${tool.about}</small></div>`)}
    <${OptionForm} ...${form} parts=${{tools: 'Tools of your own, as JSON'}}/>
    <h3>Copy as</h3><${CopyAs} ...${{model, message}}/>`;
}

function CopyAs({model, message}) {
  if (!message) return html`<p class="hint">The request of the last answer, once there is one.</p>`;
  if (Object.keys(mistakes(store.settings.values ?? {}, true)).length) return html`<p class="hint">Something above is wrong, and would not be sent.</p>`;
  const root = new URL('../', import.meta.url).href, path = '/v1/chat/completions';
  return html`<div class="pair"><${Copy} label="Python" text=${() => openaiCode(path, requestOf(message), root)}/>
    <${Copy} label="Library" text=${() => libraryCode(path, requestOf(message), model?.source ?? message.model)}/>
    <${Copy} label="curl" text=${() => curlCode(path, requestOf(message), root)}/></div>`;
}

// ---- tokens ----
const bits = p => -Math.log2(Math.max(p, 1e-12));
// Sentences of an answer: which tokens, and their mean surprise.
function sentencesOf(list) {
  const found = [];
  for (let k = 0, from = 0, sum = 0, text = ''; k < list.length; k++) {
    const token = list[k], isEnd = /[.:!?]\s*$/.test(token.text) && /^\s/.test(list[k + 1]?.text ?? ' ');
    sum += bits(probability(token) ?? 1);
    text += token.content;
    if (!isEnd && !/\n/.test(token.text) && k < list.length - 1) continue;
    if (/\p{L}{2}/u.test(text)) found.push({from, to: k, bits: sum / (k - from + 1), text: harmless(text.trim()).replace(/\s+/g, ' ')});
    from = k + 1; sum = 0; text = '';
  }
  return found;
}

// Which alternatives the present top-p leaves; the others could not have been drawn, but can be forced.
function drawable(top, limit) {
  let sum = 0;
  return new Set(top.filter(one => { const kept = sum < limit; sum += Math.exp(one.logprob); return kept; }).map(one => one.id));
}

export function TokenPanel({at, choose, forked, model, beneath}) {
  const message = at && store.messages.get(at.id), [list, set] = useState([]);
  useEffect(() => {
    let current = true;
    set([]);
    if (message) tokens(message).then(found => { if (current) set(found); });
    return () => { current = false; };
  }, [message?.id]);
  const token = at ? list[at.i] : null;
  if (!token) return html`<p class="hint">Choose a word of an answer, by a click or with the arrow keys, to see what else was likely there.
    Take another, and the answer goes on from it as a new version.</p>`;
  const limit = store.settings.values?.top_p ?? model?.defaults?.top_p ?? OPTIONS.top_p.fallback, kept = drawable(token.top ?? [], limit);
  const p = probability(token), top = token.top ?? [], rest = Math.max(0, 1 - top.reduce((sum, one) => sum + Math.exp(one.logprob), 0));
  const show = made => forked({id: made.id, i: at.i}), take = async one => show(await fork(message, at.i, one));
  const submit = async event => {
    event.preventDefault();
    const {value} = event.target.elements.other;
    if (value) show(await forkText(message, at.i, value));
  };
  const sentences = sentencesOf(list), most = Math.max(.1, ...sentences.map(one => one.bits));
  const surprising = ({from, to}) => {
    let best = from;
    for (let k = from; k <= to; k++) if ((probability(list[k]) ?? 1) < (probability(list[best]) ?? 1)) best = k;
    return best;
  };
  return html`<div class="chosen"><code>${visible(token.text)}</code><dl>
      <dt>probability</dt><dd>${p == null ? 'typed' : percent(p)}</dd>${p != null && html`<dt>surprise</dt><dd>${bits(p).toFixed(1)} bits</dd>`}
      ${token.ms != null && html`<dt>took</dt><dd>${token.ms.toFixed(0)} ms</dd>`}</dl></div>
    <h3>Fork from here with</h3>
    <ul class="alts">${top.map(one => html`<li key=${one.id} class=${kept.has(one.id) ? null : 'out'}><button type="button" disabled=${one.id === token.id} onClick=${() => take(one)}>
      <code>${visible(one.text)}</code><span class="what">${one.id === token.id ? 'taken' : html`<${Icon} name="fork"/>fork`}</span>
      <span class="p">${percent(Math.exp(one.logprob))}</span><${Share} of=${Math.exp(one.logprob)}/></button></li>`)}</ul>
    <p class="hint">${rest > .0005 && `All others together ${percent(rest)}. `}${kept.size < top.length && `Faint ones lie outside top-p ${limit}.`}</p>
    <form class="pair" key=${at.i} onSubmit=${submit}><input name="other" aria-label="Other text here" placeholder="Other text here" autocomplete="off"/>
      <button class="plain">Fork</button></form>
    <h3>Surprise by sentence, bits a token</h3>
    <ul class="alts sentences">${sentences.map(one => html`<li><button type="button" onClick=${() => choose({id: message.id, i: surprising(one)})}>
      <span>${one.text}</span><span class="p">${one.bits.toFixed(1)}</span><${Share} of=${one.bits / most}/></button></li>`)}</ul>
    <h3>Beneath this token</h3><${Layers} ...${{message, at, token}}/>
    <h3>Up to here, in another view</h3>${beneath(message, at.i)}`;
}
// What each layer would have said in a token's place, the last layer first. While it is open, it is asked for each token that is chosen.
let areOpen = false;
const LAYERS_MS = 200; // arrow keys go on
function Layers({message, at, token}) {
  const [open, setOpen] = useState(areOpen), [{layers, error}, set] = useState({});
  useEffect(() => {
    areOpen = open;
    if (!open) return;
    let current = true;
    set({});
    const ask = async () => {
      try {
        const {prompt, answer} = await idsUpTo(message, at.i);
        const found = current && await post('/stretto/layers', {model: message.model, prompt: [...prompt, ...answer], top: 1});
        if (current) set(found);
      } catch (error) { if (current) set({error: error.message}); }
    };
    const timer = setTimeout(ask, LAYERS_MS);
    return () => { current = false; clearTimeout(timer); };
  }, [open, message.id, at.i]);
  return html`<details class="layers" open=${open} onToggle=${event => setOpen(event.currentTarget.open)}><summary>What each layer would have said here</summary>
    ${error ? html`<p class="bad" role="alert">${error}</p>` : !layers ? html`<p class="hint" role="status">Reading the layers …</p>`
      : html`<table><thead><tr><th scope="col">Layer</th><th scope="col">Token</th><th scope="col" class="right">Probability</th></tr></thead>
        <tbody>${layers.map(([one], n) => html`<tr key=${n} class=${one.id === token.id ? 'same' : null}><th scope="row">${n}</th><td><code>${visible(one.piece)}</code>${
          one.id === token.id && html` <small>as taken</small>`}</td><td class="right">${percent(Math.exp(one.logprob))}</td></tr>`).reverse()}</tbody></table>`}</details>`;
}

const Share = ({of}) => html`<span class="bar" aria-hidden="true"><span style=${{width: `${100 * of}%`}}></span></span>`;

// ---- all versions of a conversation ----
export function Tree() {
  const shown = new Set(path().map(({message}) => message.id)), byParent = Map.groupBy(store.messages.values(), one => one.parent);
  const first = ({content, calls}) => harmless(content.trim() || calls?.map(one => one.function.name).join(', ') || '…').slice(0, 80);
  // What has no versions stays on its level: only forks lead to the right.
  const below = parent => (byParent.get(parent) ?? []).map((one, k, {length}) => {
    const entry = html`<button type="button" aria-current=${shown.has(one.id) ? 'true' : null} onClick=${() => lead(one)}>
      <small>${one.role === 'user' ? 'you' : one.role === 'tool' ? 'tool' : harmless(one.model)}</small><span>${first(one)}</span>
      ${length > 1 && html`<i>${k + 1}/${length}</i>`}</button>`;
    return length > 1 ? html`<li key=${one.id}>${entry}<ul>${below(one.id)}</ul></li>` : html`<li key=${one.id}>${entry}</li>${below(one.id)}`;
  });
  return html`<p class="hint">Every version of this conversation: what was edited, asked again or forked. Choose one to go on from it.</p>
    <ul class="forks">${below(null)}</ul>`;
}

// ---- the frame of all ----
const TITLES = {token: 'Token', settings: 'Settings', versions: 'Versions'}, INSIDE = {token: 'Alternatives', settings: 'All settings', versions: 'Tree'};
export function Panel({name, at, choose, close, children}) {
  const title = TITLES[name], to = by => choose({...at, i: Math.max(0, at.i + by)});
  const key = event => { if (event.key === 'Escape') { event.stopPropagation(); close(); } };
  return html`<aside class=${`panel ${name}`} aria-label=${title} onKeyDown=${key}><header><h2>${title}</h2>
      ${name === 'token' && at && html`<span class="steps"><${Act} icon="left" label="Previous token" onClick=${() => to(-1)}/>
        <${Act} icon="right" label="Next token" onClick=${() => to(1)}/></span>`}
      <${Act} icon="close" label="Close" onClick=${close}/></header>
    <div class="inner" tabindex="0" role="region" aria-label=${INSIDE[name]}>${children}</div></aside>`;
}
