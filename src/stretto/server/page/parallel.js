// Parallel runs: several tokens at one position, drawn as a lattice that grows; isolated and visible side by side.
import {html, useEffect, useMemo, useRef, useState} from './vendor/preact.js';
import {events} from './api.js';
import {attended, bestPath, HEIGHT, layout, lines, ROW, TOP} from './lattice.js';
import {Field, number, percent, visible} from './ui.js';

// name: [value at first, choices or limits, help]
const OPTIONS = {
  mode: ['both', ['both', 'isolated', 'visible'], 'Whether members of a set attend to each other; both: two runs.'],
  threshold: [.12, {min: .001, max: 1, step: 'any'}, 'Every token at least so probable is kept.'],
  max_width: [4, {min: 1, max: 256}, 'Members of a set, at most.'],
  max_tokens: [16, {min: 1, max: 4096}, 'Steps, at most.'],
  attention: [false, null, 'Tell what members attend to.'],
  combine: ['mixture', ['mixture', 'best'], 'The next distribution: the mixture of the members’, or the best one’s.'],
  temperature: [1, {min: 0, max: 100, step: 'any'}, 'Applied before the threshold.'],
  prune: ['', {min: .001, max: 100, step: 'any'}, 'Members under so many times the mean attention of their set are removed.'],
  prune_after: [4, {min: 1, max: 4096}, 'Steps until that is decided.'],
  stop: ['', '', 'A text that ends the run.'],
  ignore_eos: [false, null, 'Go on behind end tokens.'],
};
const NAMES = Object.keys(OPTIONS), FIRST = 5;
let kept = {prompt: 'The cat sat on the', ...Object.fromEntries(NAMES.map(name => [name, OPTIONS[name][0]]))}, last = []; // while the page is open

function bodyOf(form, mode, model) {
  const given = Object.entries(form).filter(([, value]) => value !== '' && value !== false);
  return {model, stream: true, ...Object.fromEntries(given.map(([name, value]) => [name, OPTIONS[name]?.[1]?.min == null ? value : +value])), mode};
}

export default function Parallel({model}) {
  const [form, setForm] = useState(kept), [runs, setRuns] = useState(last), [busy, setBusy] = useState(false), abort = useRef(null);
  useEffect(() => () => abort.current?.abort(), []);
  const set = (name, value) => setForm(kept = {...kept, [name]: value});
  const start = async event => {
    event.preventDefault();
    abort.current?.abort();
    const {signal} = abort.current = new AbortController();
    const made = (form.mode === 'both' ? ['isolated', 'visible'] : [form.mode]).map(mode => ({mode, steps: [], attention: new Map()}));
    setBusy(true);
    setRuns(last = made);
    let due = 0; // one drawing for all that has come
    const tell = () => { due ||= requestAnimationFrame(() => { due = 0; if (abort.current?.signal === signal) setRuns([...made]); }); };
    await Promise.all(made.map(run => follow(run, bodyOf(form, run.mode, model.name), signal, tell)));
    if (abort.current?.signal === signal) setBusy(false);
  };
  const stop = () => { abort.current?.abort(); setBusy(false); };
  const field = name => html`<${Field} key=${name} label=${name} help=${OPTIONS[name][2]}>${(id, described) => {
    const [, kind] = OPTIONS[name], value = form[name], all = {id, 'aria-describedby': described, onInput: event => set(name, event.target[kind === null ? 'checked' : 'value'])};
    if (kind?.map) return html`<select ...${all} value=${value}>${kind.map(one => html`<option value=${one}>${one}</option>`)}</select>`;
    return kind === null ? html`<input type="checkbox" ...${all} checked=${value}/>` : html`<input ...${all} ...${kind && {type: 'number', ...kind}} value=${value}/>`;
  }}<//>`;
  return html`<section class="wide"><h2>Several tokens at one position</h2>
    <form onSubmit=${start}>
      <${Field} label="Prompt">${id => html`<textarea id=${id} required value=${form.prompt} onInput=${event => set('prompt', event.target.value)}
        onKeyDown=${event => { if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) event.target.form.requestSubmit(); }}></textarea>`}<//>
      <div class="fields">${NAMES.slice(0, FIRST).map(field)}</div>
      <details><summary>More options</summary><div class="fields">${NAMES.slice(FIRST).map(field)}</div></details>
      <div class="row"><button class="primary" disabled=${!model}>Run</button><button type="button" disabled=${!busy} onClick=${stop}>Stop</button></div></form></section>
  <div class="wide runs">${runs.map(run => html`<${Run} key=${run.mode} run=${run}/>`)}</div>`;
}

function change(run, at, members) { run.steps[at] = {...run.steps[at], members}; } // another step: it is drawn again

async function follow(run, body, signal, tell) {
  try {
    for await (const {step, attention, result} of events('/stretto/parallel', {method: 'POST', body, signal})) {
      if (step) {
        run.steps.push(step);
        for (const [at, member] of step.pruned) change(run, at, run.steps[at].members.map((one, j) => j === member ? {...one, kept: false} : one));
      }
      if (attention) run.attention.set(attention.index, attention);
      if (result) { // with cells, and what was pruned at last
        run.result = result;
        result.steps.forEach(({members}, at) => change(run, at, members));
      }
      tell();
    }
  } catch (error) {
    if (error.name !== 'AbortError') { run.error = error; tell(); }
  }
}

function Run({run}) {
  const [chosen, choose] = useState(null), {steps, result, error, mode} = run, {path, logprob} = bestPath(steps);
  const at = chosen && chosen[0] < steps.length ? chosen : null, looks = at && attended(run, ...at), text = steps.map((step, i) => step.members[path[i]].text).join('');
  return html`<section><h2>${mode}</h2>
    ${error && html`<p class="bad" role="alert">${error.message}</p>`}
    <${Lattice} ...${{steps, path, at, choose, mode}} weights=${looks?.weights}/>
    ${steps.length > 0 && html`<p><span class="soft">Most probable path (${percent(Math.exp(logprob / steps.length))} a token):</span> <span class="text" id=${`path-${mode}`}>${text}</span></p>`}
    ${result && html`<p class="soft" role="status" id=${`end-${mode}`}>${
      `${number(result.usage.steps)} steps, ${number(result.usage.members)} members, ${number(result.usage.pruned)} pruned; ended by ${result.finish_reason}`}</p>`}
    ${at && html`<${Member} ...${{run, at, looks}}/>`}</section>`;
}

const pen = document.createElement('canvas').getContext('2d');
pen.font = '14px ui-monospace, monospace';
const widthOf = one => one.width ??= pen.measureText(`${visible(one.text)} ${percent(one.probability)}`).width + 26;

function Lattice({steps, path, at, choose, mode, weights}) {
  const box = useRef(), {columns, width, height} = layout(steps, widthOf), [now, member] = at ?? [0, 0], most = Math.max(...(weights ?? []).flat());
  useEffect(() => { if (!at) box.current.scrollLeft = width; }, [steps.length]); // follow a run until a member is looked at
  const go = (step, to) => {
    const next = [step, Math.min(to, steps[step].members.length - 1)];
    choose(next);
    requestAnimationFrame(() => box.current?.querySelector(`[data-at="${next}"]`)?.focus());
  };
  const keys = event => {
    const [right, down] = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1]}[event.key] ?? [];
    if (right == null || !event.target.dataset.at || !steps[now + right]) return;
    event.preventDefault();
    go(now + right, Math.max(0, member + down));
  };
  return html`<div class="lattice" ref=${box} tabindex="0" role="group" aria-label=${`Lattice, ${mode}: a column for each position`} onKeyDown=${keys}>
    <div style=${{width: `${width}px`, height: `${height}px`}}><svg aria-hidden="true" width=${width} height=${height}>
      ${Object.entries(lines(steps, columns, path)).map(([kind, d]) => html`<path key=${kind} class=${kind} d=${d}/>`)}</svg>
      ${steps.map((step, k) => html`<${Column} key=${k} ...${{step, k, go, most, ...columns[k]}} best=${path[k]} tab=${k === now ? member : null} chosen=${at && k === now ? member : null} shares=${weights?.[k]}/>`)}</div></div>`;
}

// A set. It is drawn again only if something in it has changed: runs are long, and grow by one set.
function Column({step, k, go, most, x, width, best, tab, chosen, shares}) {
  return useMemo(() => step.members.map((one, j) => html`<button type="button" key=${j} data-at=${`${k},${j}`} tabindex=${j === tab ? 0 : -1} aria-pressed=${j === chosen} onClick=${() => go(k, j)}
    class=${['node', j === best && 'best', !one.kept && 'pruned'].filter(Boolean).join(' ')}
    style=${{left: `${x}px`, top: `${TOP + ROW * j}px`, width: `${width}px`, height: `${HEIGHT}px`, '--share': most > 0 ? shares[j] / most : 0}}
    >${one.kept ? visible(one.text) : html`<s>${visible(one.text)}</s>`} <small>${percent(one.probability)}</small>${j === best && html`<span class="hidden"> on the path</span>`}${
      !one.kept && html`<span class="hidden"> pruned</span>`}</button>`), [step, best, tab, chosen, shares]);
}

function Member({run, at: [step, member], looks}) {
  const {members, edges, position} = run.steps[step], one = members[member], before = run.steps[step - 1]?.members;
  return html`<h3>Step ${step + 1}, position ${position}</h3>
    <p aria-live="polite"><code>${visible(one.text)}</code> (token ${one.id}): ${percent(one.probability)}, ${percent(one.weight)} of its set${one.kept ? '' : ', pruned'}${one.cell == null ? '' : `, cell ${one.cell}`}.
      ${before && edges.map((row, i) => html` After <code>${visible(before[i].text)}</code> ${percent(row[member])}.`)}</p>
    ${looks ? html`<table class="attention"><caption>Attention, the mean over layers and heads</caption><thead><tr><th scope="col">Token</th><th scope="col">Position</th><th scope="col">Share</th></tr></thead>
      <tbody>${looks.columns.slice(0, 12).map(({piece, position, weight}) => html`<tr><td><code>${visible(piece)}</code></td><td>${position}</td><td>${percent(weight)}</td></tr>`)}</tbody></table>`
    : html`<p class="soft">${run.attention.size ? 'The last set is not computed: it has attended to nothing.' : 'With the option “attention” a run tells what its members attend to.'}</p>`}`;
}
