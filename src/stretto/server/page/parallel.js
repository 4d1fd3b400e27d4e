// Parallel runs: several tokens at one position, drawn as a lattice that grows; isolated and visible side by side.
import {html, useEffect, useMemo, useRef, useState} from './vendor/preact.js';
import {events} from './api.js';
import {Choice, Input} from './forms.js';
import {attended, bestPath, HEIGHT, layout, lines, ROW, TOP} from './lattice.js';
import {number, percent, visible} from './ui.js';

// name: [value at first, help, choices or limits]
const OPTIONS = {
  mode: ['both', 'Whether members of a set attend to each other; both: two runs.', ['both', 'isolated', 'visible']],
  threshold: [.12, 'Keep every token with at least this probability.', {min: .001, max: 1}],
  max_width: [4, 'The most members in a set.', {min: 1, max: 256, step: 1}],
  max_tokens: [16, 'The most steps.', {min: 1, max: 4096, step: 1}],
  attention: [false, 'Show what members attend to.'],
  combine: ['mixture', 'The next distribution: the mixture of the members’, or the best one’s.', ['mixture', 'best']],
  temperature: [1, 'Applied before the threshold.', {min: 0, max: 100}],
  prune: ['', 'Remove members below this multiple of their set’s mean attention.', {min: .001, max: 100}],
  prune_after: [4, 'Steps before pruning.', {min: 1, max: 4096, step: 1}],
  stop: ['', 'A text that ends the run.'],
  ignore_eos: [false, 'Continue past end tokens.'],
};
const NAMES = Object.keys(OPTIONS), FIRST = 5; // that are always shown
// While the page is open: the form, and the last runs.
let kept = {prompt: 'The cat sat on the', ...Object.fromEntries(NAMES.map(name => [name, OPTIONS[name][0]]))}, last = [];

// A conversation to go on from, of another view: {model, ids, about}.
let given = null;
export function take(conversation) { given = conversation; last = []; }

function bodyOf(form, mode, model) {
  const set = Object.entries(form).filter(([, value]) => value !== '' && value !== false);
  return {model, stream: true, ...Object.fromEntries(set.map(([name, value]) => [name, OPTIONS[name]?.[2]?.max ? +value : value])), mode,
    ...(given?.model === model ? {prompt: given.ids} : {})};
}

export default function Parallel({model}) {
  const [form, setForm] = useState(kept), [runs, setRuns] = useState(last), [busy, setBusy] = useState(false), abort = useRef(null);
  useEffect(() => () => abort.current?.abort(), []);
  const set = (name, value) => setForm(kept = {...kept, [name]: value});
  const start = async event => {
    event.preventDefault();
    abort.current?.abort();
    const {signal} = abort.current = new AbortController(), modes = form.mode === 'both' ? ['isolated', 'visible'] : [form.mode];
    const made = modes.map(mode => ({mode, steps: [], attention: new Map()})), isCurrent = () => abort.current.signal === signal;
    let due = 0; // one drawing for all that has come
    const tell = () => { due ||= requestAnimationFrame(() => { due = 0; if (isCurrent()) setRuns([...made]); }); };
    setBusy(true);
    setRuns(last = made);
    await Promise.all(made.map(run => follow(run, bodyOf(form, run.mode, model.name), signal, tell)));
    if (isCurrent()) setBusy(false);
  };
  const stop = () => { abort.current?.abort(); setBusy(false); };
  const field = name => {
    const [first, help, kind] = OPTIONS[name], value = form[name], props = {key: name, label: name, help, set: value => set(name, value)};
    if (kind?.map) return html`<${Choice} ...${props} value=${value} options=${kind}/>`;
    return html`<${Input} ...${props} ...${first === false ? {type: 'checkbox', checked: value} : {value, ...kind && {type: 'number', step: 'any', ...kind}}}/>`;
  };
  const keys = event => { if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) event.target.form.requestSubmit(); };
  return html`<section class="wide"><h2>Several tokens at one position</h2>
    <form onSubmit=${start}>
      ${given && given.model === model?.name ? html`<div class="row" id="given"><span>Goes on behind ${number(given.ids.length)} tokens: ${given.about}</span>
          <button type="button" onClick=${() => { given = null; setForm({...form}); }}>Type a prompt instead</button></div>`
        : html`<${Input} label="Prompt" rows="2" required value=${form.prompt} set=${text => set('prompt', text)} onKeyDown=${keys}/>`}
      <div class="fields">${NAMES.slice(0, FIRST).map(field)}</div>
      <details><summary>More options</summary><div class="fields">${NAMES.slice(FIRST).map(field)}</div></details>
      <div class="row"><button class="primary" disabled=${!model}>Run</button>
        <button type="button" disabled=${!busy} onClick=${stop}>Stop</button></div></form></section>
  <div class="wide runs">${runs.map(run => html`<${Run} key=${run.mode} run=${run}/>`)}</div>`;
}

function change(run, at, members) { run.steps[at] = {...run.steps[at], members}; } // another step: it is drawn again

async function follow(run, body, signal, tell) {
  try {
    for await (const {step, attention, result} of events('/stretto/parallel', {method: 'POST', body, signal})) {
      if (step) {
        run.steps.push(step);
        for (const [at, member] of step.pruned) {
          change(run, at, run.steps[at].members.map((one, j) => j === member ? {...one, kept: false} : one));
        }
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
  const at = chosen && chosen[0] < steps.length ? chosen : null, looks = at && attended(run, ...at);
  const text = steps.map((step, i) => step.members[path[i]].text).join(''), {usage} = result ?? {};
  return html`<section><h2>${mode}</h2>
    ${error && html`<p class="bad" role="alert">${error.message}</p>`}
    <${Lattice} ...${{steps, path, at, choose, mode}} weights=${looks?.weights}/>
    ${steps.length > 0 && html`<p><span class="soft">Most probable path (${percent(Math.exp(logprob / steps.length))} a token):</span>
      ${' '}<span class="text" id=${`path-${mode}`}>${text}</span></p>`}
    ${result && html`<p class="soft" role="status" id=${`end-${mode}`}>${number(usage.steps)} steps,${' '}
      ${number(usage.members)} members, ${number(usage.pruned)} pruned; ended by ${result.finish_reason}</p>`}
    ${at && html`<${Member} ...${{run, at, looks}}/>`}</section>`;
}

const pen = document.createElement('canvas').getContext('2d');
pen.font = '14px ui-monospace, monospace';
const widthOf = one => one.width ??= pen.measureText(`${visible(one.text)} ${percent(one.probability)}`).width + 26;

function Lattice({steps, path, at, choose, mode, weights}) {
  const box = useRef(), {columns, width, height} = layout(steps, widthOf), [now, member] = at ?? [0, 0];
  const most = Math.max(...(weights ?? []).flat());
  useEffect(() => { if (!at) box.current.scrollLeft = width; }, [steps.length]); // follow a run until a member is chosen
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
  const column = (step, k) => html`<${Column} key=${k} ...${{step, k, go, most, ...columns[k]}} best=${path[k]} shares=${weights?.[k]}
    tab=${k === now ? member : null} chosen=${at && k === now ? member : null}/>`;
  return html`<div class="lattice" ref=${box} tabindex="0" role="group" aria-label=${`Lattice, ${mode}: a column for each position`} onKeyDown=${keys}>
    <div style=${{width: `${width}px`, height: `${height}px`}}><svg aria-hidden="true">
      ${Object.entries(lines(steps, columns, path)).map(([kind, d]) => html`<path key=${kind} class=${kind} d=${d}/>`)}</svg>
      ${steps.map(column)}</div></div>`;
}

// A set. It is drawn again only if something in it has changed: runs are long, and grow by one set.
function Column({step, k, go, most, x, width, best, tab, chosen, shares}) {
  return useMemo(() => step.members.map(({text, probability, kept}, j) => {
    const place = {left: `${x}px`, top: `${TOP + ROW * j}px`, width: `${width}px`, height: `${HEIGHT}px`};
    return html`<button type="button" key=${j} data-at=${`${k},${j}`} class=${`node${j === best ? ' best' : ''}${kept ? '' : ' pruned'}`}
      tabindex=${j === tab ? 0 : -1} aria-pressed=${j === chosen} style=${{...place, '--share': most > 0 ? shares[j] / most : 0}}
      onClick=${() => go(k, j)}>${kept ? visible(text) : html`<s>${visible(text)}</s>`} <small>${percent(probability)}</small>
      <span class="hidden">${j === best && ' on the path'}${!kept && ' pruned'}</span></button>`;
  }), [step, best, tab, chosen, shares]);
}

function Member({run, at: [step, member], looks}) {
  const {members, edges, position} = run.steps[step], one = members[member], before = run.steps[step - 1]?.members;
  const after = before && edges.map((row, i) => html` After <code>${visible(before[i].text)}</code> ${percent(row[member])}.`);
  return html`<h3>Step ${step + 1}, position ${position}</h3>
    <p aria-live="polite"><code>${visible(one.text)}</code> (token ${one.id}): ${percent(one.probability)}, ${percent(one.weight)} of its set${
      one.kept ? '' : ', pruned'}${one.cell == null ? '' : `, cell ${one.cell}`}.${after}</p>
    ${looks ? html`<table class="attention"><caption>Attention, the mean over layers and heads</caption>
      <thead><tr>${['Token', 'Position', 'Share'].map(name => html`<th scope="col">${name}</th>`)}</tr></thead>
      <tbody>${looks.columns.slice(0, 12).map(({piece, position, weight}) => html`<tr><td><code>${visible(piece)}</code></td>
        <td>${position}</td><td>${percent(weight)}</td></tr>`)}</tbody></table>`
    : html`<p class="soft">${run.attention.size ? 'The last set is not computed: it has attended to nothing.'
      : 'With the option “attention” a run shows what its members attend to.'}</p>`}`;
}
