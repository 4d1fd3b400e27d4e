// Parallel runs: several tokens at one position, drawn as a lattice that grows; isolated and visible side by side.
import {html, useEffect, useMemo, useRef, useState} from './vendor/preact.js';
import {events} from './api.js';
import {attended, bestPath, HEIGHT, layout, lines, ROW, TOP} from './lattice.js';
import {Bar, Field, number, percent, visible} from './ui.js';

const NUMBERS = [
  ['threshold', 'Threshold', {min: .001, max: 1, step: .001}, 'Every token at least so probable is kept.'],
  ['max_width', 'Width', {min: 1, max: 256}, 'Members of a set, at most.'],
  ['max_tokens', 'Steps', {min: 1, max: 4096}, 'At most.'],
  ['temperature', 'Temperature', {min: 0, max: 100, step: .01}, 'Applied before the threshold.'],
  ['prune', 'Prune', {min: .01, max: 100, step: .01}, 'Remove members under so many times the mean attention of their set. Empty: none.'],
  ['prune_after', 'Prune after', {min: 1, max: 4096}, 'Steps until that is decided.'],
];
const CHOICES = [
  ['mode', 'Mode', {both: 'both, side by side', isolated: 'isolated', visible: 'visible'}, 'Whether the members of a set attend to each other.'],
  ['combine', 'Combine', {mixture: 'mixture', best: 'best'}, 'The next distribution: the mixture of the members’, or the best member’s.'],
];
const CHECKS = {ignore_eos: 'go on after the end', attention: 'keep attention'};
const START = {prompt: 'The cat sat on the', threshold: .12, max_width: 4, max_tokens: 16, temperature: 1, prune: '', prune_after: 4, mode: 'both', combine: 'mixture', stop: ''};
let kept = START, last = []; // for as long as the page is open

function bodyOf(form, mode, model) {
  const numbers = NUMBERS.filter(([name]) => form[name] !== '').map(([name]) => [name, +form[name]]);
  const checks = Object.keys(CHECKS).filter(name => form[name]).map(name => [name, true]);
  return {model, prompt: form.prompt, stream: true, mode, combine: form.combine, ...(form.stop && {stop: form.stop}), ...Object.fromEntries([...numbers, ...checks])};
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
  const choice = ([name, label, options, help]) => html`<${Field} key=${name} ...${{label, help}}>${(id, described) => html`<select id=${id} aria-describedby=${described} value=${form[name]}
    onChange=${event => set(name, event.target.value)}>${Object.entries(options).map(([value, text]) => html`<option value=${value}>${text}</option>`)}</select>`}<//>`;
  const numeric = ([name, label, limits, help]) => html`<${Field} key=${name} ...${{label, help}}>${(id, described) => html`<input type="number" id=${id} aria-describedby=${described}
    step="1" ...${limits} required=${name !== 'prune'} value=${form[name]} onInput=${event => set(name, event.target.value)}/>`}<//>`;
  return html`<section class="wide" aria-labelledby="parallel-title"><h2 id="parallel-title">Several tokens at one position</h2>
    <form onSubmit=${start}>
      <${Field} label="Prompt">${id => html`<textarea id=${id} required value=${form.prompt} onInput=${event => set('prompt', event.target.value)}
        onKeyDown=${event => { if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) event.target.form.requestSubmit(); }}></textarea>`}<//>
      <div class="fields">
        ${CHOICES.slice(0, 1).map(choice)}${NUMBERS.slice(0, 3).map(numeric)}</div>
      <details><summary>More options</summary><div class="fields">${CHOICES.slice(1).map(choice)}${NUMBERS.slice(3).map(numeric)}
        <${Field} label="Stop" help="A text that ends the run.">${(id, described) => html`<input id=${id} aria-describedby=${described} value=${form.stop} onInput=${event => set('stop', event.target.value)}/>`}<//></div></details>
      <div class="row"><button class="primary" disabled=${!model}>Run</button><button type="button" disabled=${!busy} onClick=${stop}>Stop</button>
        ${Object.entries(CHECKS).map(([name, text]) => html`<label key=${name}><input type="checkbox" checked=${!!form[name]} onChange=${event => set(name, event.target.checked)}/> ${text}</label>`)}</div></form></section>
  <div class="wide runs">${runs.map(run => html`<${Run} key=${run.mode} ...${{run, form}}/>`)}</div>`;
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
  const [chosen, choose] = useState(null), {steps, result, error, mode} = run, {path, logprob} = bestPath(steps), title = `run-${mode}`;
  const at = chosen && chosen[0] < steps.length ? chosen : null, looks = at && attended(run, ...at), text = steps.map((step, i) => step.members[path[i]].text).join('');
  return html`<section aria-labelledby=${title}><h2 id=${title}>${mode}</h2>
    ${error && html`<p class="bad" role="alert">${error.message}</p>`}
    <${Lattice} ...${{steps, path, at, choose, mode}} weights=${looks?.weights}/>
    ${steps.length > 0 && html`<p><span class="soft">Most probable path (${percent(Math.exp(logprob / steps.length))} a token):</span> <span class="text" id=${`path-${mode}`}>${text}</span></p>`}
    ${result && html`<p class="soft" role="status" id=${`end-${mode}`}>${number(result.usage.steps)} steps, ${number(result.usage.members)} members, ${number(result.usage.pruned)} pruned;
      ${` ${number(result.timings.tokens_per_second)} steps a second; ended by ${result.finish_reason}`}</p>`}
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
    ${looks ? html`<table class="attention"><caption>Attention, the mean over layers and heads</caption><thead><tr><th scope="col">Token</th><th scope="col" class="num">Position</th><th scope="col" class="num">Share</th><th scope="col" class="hidden">Bar</th></tr></thead>
      <tbody>${looks.columns.slice(0, 12).map(({piece, position, weight}) => html`<tr><td><code>${visible(piece)}</code></td><td class="num">${position}</td><td class="num">${percent(weight)}</td>
        <td><${Bar} value=${weight} label=${percent(weight)}/></td></tr>`)}</tbody></table>`
    : html`<p class="soft">${run.attention.size ? 'This set was chosen last and not computed: it has attended to nothing.' : 'With “keep attention” a run tells what its members attend to.'}</p>`}`;
}
