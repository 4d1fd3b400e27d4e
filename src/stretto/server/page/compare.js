// Compare: one prompt to two models or with two sets of options, side by side; and plots of what `stretto compare` has measured.
import {html, useEffect, useMemo, useRef, useState} from './vendor/preact.js';
import {events} from './api.js';
import {number} from './ui.js';
import {Choice, Input} from './forms.js';

const OPTIONS = {temperature: '0 is greedy', top_k: '0: all', top_p: 'above 0, up to 1', min_p: '0 to 1', repetition_penalty: '1 is none',
  seed: 'a whole number'};
const SIDES = ['A', 'B'], MAX_FILE_BYTES = 4e6;

// The numbers of the first tokens that differ, one for each text; null if there is none yet. Ids are compared within a model,
// text between two: their tokens are not the same things. `ended` says that nothing comes any more.
export function difference(one, two, byIds, ended) {
  if (byIds) {
    const n = Math.min(one.length, two.length);
    for (let i = 0; i < n; i++) if (one[i].ids.join() !== two[i].ids.join()) return [i, i];
    return ended && one.length !== two.length ? [n, n] : null;
  }
  const [first, second] = [one, two].map(tokens => tokens.map(token => token.text).join(''));
  const n = Math.min(first.length, second.length);
  let at = 0;
  while (at < n && first[at] === second[at]) at++;
  if (at === n && !(ended && first.length !== second.length)) return null;
  return [one, two].map(tokens => {
    let i = 0;
    for (let end = 0; i < tokens.length; i++) { end += tokens[i].text.length; if (end > at) break; }
    return i;
  });
}

// A conversation of the chat, to be answered by both: {model, messages, options, about}.
let given = null;
export function take(conversation) { given = conversation; }

// Runs a prompt, and tells what there is after every event.
async function generate({model, options}, {prompt, chat, length, messages}, signal, tell) {
  const set = Object.entries(options).filter(([, value]) => value !== '').map(([name, value]) => [name, Number(value)]);
  const body = {model, stream: true, stream_options: {include_usage: true}, return_token_ids: true, max_tokens: Number(length),
    ...Object.fromEntries(set), ...(chat ? {messages: messages ?? [{role: 'user', content: prompt}]} : {prompt})};
  const run = {tokens: []};
  for await (const event of events(chat ? '/v1/chat/completions' : '/v1/completions', {method: 'POST', body, signal})) {
    const {token_ids: ids = [], text, delta} = event.choices[0] ?? {};
    if (ids.length) run.tokens.push({ids, text: text ?? delta?.reasoning_content ?? delta?.content ?? ''});
    if (event.timings) run.timings = event.timings;
    if (event.usage) run.usage = event.usage;
    tell(run);
  }
  tell({...run, ended: true});
}

// The settings of the chat, and beside them another model, or without one another temperature.
function sidesOf({model, options}, able) {
  const same = Object.fromEntries(Object.keys(OPTIONS).filter(name => options[name] != null).map(name => [name, String(options[name])]));
  const other = able.find(one => one.name !== model && one.template !== false);
  return [{model, options: same}, other ? {model: other.name, options: same} : {model, options: {...same, temperature: same.temperature === '0' ? '0.8' : '0'}}];
}

export default function Compare({models, model}) {
  const able = models.filter(one => one.verbs?.includes('generate') ?? true);
  const [sides, setSides] = useState(() => given ? sidesOf(given, able) : [{options: {temperature: '0'}}, {options: {temperature: '0.8'}}]);
  const [ask, setAsk] = useState({prompt: 'Once upon a time', chat: false, length: '64', apart: false, ...(given ? {chat: true, length: '256', messages: given.messages} : {})});
  const [runs, setRuns] = useState([{tokens: []}, {tokens: []}]), [state, set] = useState({}), abort = useRef(null);
  useEffect(() => () => abort.current?.abort(), []);
  const pick = name => able.find(one => one.name === (name ?? model?.name)) ?? able[0];
  const chosen = sides.map(side => ({...side, model: pick(side.model)?.name}));
  const change = (i, more) => setSides(sides.map((side, j) => i === j ? {...side, ...more} : side));
  const put = name => value => setAsk(before => ({...before, [name]: value}));
  const submit = async event => {
    event.preventDefault();
    const mine = abort.current = new AbortController(), latest = [{tokens: []}, {tokens: []}];
    let due = false;
    const show = () => { // once a frame, however many tokens come
      if (due) return;
      due = true;
      requestAnimationFrame(() => { due = false; if (mine === abort.current) setRuns([...latest]); });
    };
    const run = i => generate(chosen[i], ask, mine.signal, more => { latest[i] = more; show(); });
    set({running: true, byIds: chosen[0].model === chosen[1].model});
    try {
      if (ask.apart) { await run(0); await run(1); }
      else await Promise.all([run(0), run(1)]);
      set(before => ({...before, running: false, ended: true}));
    } catch (error) {
      set({error: error.name === 'AbortError' ? 'Stopped.' : error.message});
      mine.abort();
    }
    setRuns([...latest]);
  };
  const at = difference(runs[0].tokens, runs[1].tokens, state.byIds, state.ended);
  const others = useMemo(() => { // while they come, of what both have so far
    const n = state.ended ? Infinity : Math.min(...runs.map(run => run.tokens.length), WHILE_TOKENS);
    return differing(runs[0].tokens.slice(0, n), runs[1].tokens.slice(0, n), state.byIds);
  }, [state.ended, runs]);
  return html`<section class="wide"><h2>Compare</h2><form onSubmit=${submit}>
      ${ask.messages ? html`<div class="row" id="given"><span>Answers ${number(ask.messages.length)} ${ask.messages.length === 1 ? 'message' : 'messages'} of ${given?.about}</span>
          <button type="button" onClick=${() => { given = null; setAsk({...ask, messages: null}); }}>Type a prompt instead</button></div>`
        : html`<${Input} label="Prompt" rows="2" required value=${ask.prompt} set=${put('prompt')}/>`}
      <div class="row">
        <${Input} label="Tokens" inline type="number" min="1" max="4096" required value=${ask.length} set=${put('length')}/>
        ${!ask.messages && html`<${Input} label="As a chat" inline type="checkbox" checked=${ask.chat} set=${put('chat')}/>`}
        <${Input} label="One after the other" inline type="checkbox" checked=${ask.apart} set=${put('apart')}/></div>
      <div class="sides">${chosen.map((side, i) => html`
        <${Side} name=${SIDES[i]} side=${side} models=${able} onChange=${more => change(i, more)}/>`)}</div>
      <div class="row"><button class="primary" disabled=${state.running}>Run both</button>
        <button type="button" disabled=${!state.running} onClick=${() => abort.current.abort()}>Stop</button></div></form>
    <p role="status" class=${state.error && 'bad'}>${
      state.error ?? (state.ended ? verdict(runs, at, others) : state.running ? 'running …' : '')}</p>
    <div class="sides results">${runs.map((run, i) => html`
      <div aria-busy=${String(!!state.running && !run.ended)}><h3>${SIDES[i]} <span class="soft">${chosen[i].model}</span></h3><${Marked} tokens=${run.tokens} at=${at?.[i]} others=${others[i]}/></div>`)}</div>
    ${runs.some(run => run.usage) && html`<${Times} runs=${runs}/>`}</section><${Measured}/>`;
}

function Side({name, side, models, onChange}) {
  const {model, options} = side, put = option => value => onChange({options: {...options, [option]: value}});
  return html`<fieldset><legend>${name}</legend>
    <${Choice} label="Model" value=${model} options=${models.map(one => one.name)} set=${model => onChange({model})}/>
    <${Option} name="temperature" ...${{options, put}}/>
    <details><summary>More options</summary>
      <div class="fields">${Object.keys(OPTIONS).slice(1).map(name => html`<${Option} ...${{name, options, put}}/>`)}</div></details></fieldset>`;
}
const Option = ({name, options, put}) => html`
  <${Input} label=${name} help=${OPTIONS[name]} type="number" step="any" placeholder="the model’s own" value=${options[name] ?? ''} set=${put(name)}/>`;

const MAX_PAIRS = 4e6, WHILE_TOKENS = 500; // of tokens that are compared with each other
// Which tokens of each text are not in the other, in their order: all but a longest common subsequence.
export function differing(one, two, byIds) {
  const [a, b] = [one, two].map(tokens => tokens.map(token => byIds ? token.ids.join() : token.text));
  if (!a.length || !b.length || a.length * b.length > MAX_PAIRS) return [new Set(), new Set()];
  const width = b.length + 1, best = new Uint16Array((a.length + 1) * width), missing = [new Set(), new Set()];
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      const at = i * width + j;
      best[at] = a[i] === b[j] ? best[at + width + 1] + 1 : Math.max(best[at + width], best[at + 1]);
    }
  }
  let i = 0, j = 0;
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) { i++; j++; }
    else if (j >= b.length || (i < a.length && best[(i + 1) * width + j] >= best[i * width + j + 1])) missing[0].add(i++);
    else missing[1].add(j++);
  }
  return missing;
}

// The first difference stands out; others are underlined.
function Marked({tokens, at, others}) {
  const pieces = [];
  let plain = '';
  const flush = () => { if (plain) pieces.push(plain); plain = ''; };
  for (const [i, {text}] of tokens.entries()) {
    if (i !== at && !others?.has(i)) { plain += text; continue; }
    flush();
    pieces.push(i === at ? html`<mark>${text || '∎'}</mark>` : html`<u>${text}</u>`);
  }
  flush();
  if (at != null && at >= tokens.length) pieces.push(html`<mark>∎</mark>`);
  return html`<p class="text">${pieces}</p>`;
}

function verdict(runs, at, others) {
  if (!at) return `Both are the same: ${number(runs[0].tokens.length)} tokens.`;
  const words = runs.map((run, i) => run.tokens[at[i]] ? `“${run.tokens[at[i]].text}”` : 'the end'), first = `The first difference is at token ${number(at[0] + 1)}`;
  const [a, b] = runs.map(run => run.tokens.length), shared = a * b > MAX_PAIRS ? '' : ` ${number(a - others[0].size)} of ${number(a)} and ${number(b)} are in both.`;
  return `${first}: ${words.join(' against ')}.${shared}`;
}

function Times({runs}) {
  const ms = seconds => seconds == null ? '–' : `${(1000 * seconds).toFixed(0)} ms`;
  const rows = {'First token': ({timings}) => ms(timings?.first_token), 'Tokens a second': ({timings}) => timings?.tokens_per_second.toFixed(1),
    Total: ({timings}) => ms(timings?.total), Tokens: ({usage}) => usage?.completion_tokens, 'Prompt tokens': ({usage}) => usage?.prompt_tokens,
    'From the cache': ({usage}) => usage?.prompt_tokens_details.cached_tokens};
  return html`<table><thead><tr><td></td>${SIDES.map(name => html`<th scope="col" class="num">${name}</th>`)}</tr></thead>
    <tbody>${Object.entries(rows).map(([name, value]) => html`<tr><th scope="row">${name}</th>
      ${runs.map(run => html`<td class="num">${value(run) ?? '–'}</td>`)}</tr>`)}</tbody></table>`;
}

// -- what `stretto compare MODEL --json` has printed --

function Measured() {
  const [found, set] = useState(null), [error, fail] = useState(null);
  const take = async file => {
    set(null);
    fail(null);
    if (!file) return;
    try {
      if (file.size > MAX_FILE_BYTES) throw new Error('it is too large');
      set(checked(JSON.parse(await file.text())));
    } catch (error) { fail(`${file.name} is no result of stretto compare --json: ${error.message}`); }
  };
  return html`<details class="wide measured"><summary>Plot what <code>stretto compare</code> has measured</summary>
    <${Input} label="Results" help="The file that stretto compare MODEL --json > FILE has written" error=${error}
      type="file" accept=".json,application/json" set=${take}/>
    ${found && html`<p>${found.about}</p>
      <div class="charts">${found.measures.map(one => html`<${Measure} key=${one.name} ...${one}/>`)}</div>
      <ul>${found.notes.map(note => html`<li>${note}</li>`)}</ul>`}</details>`;
}

function checked(data) { // only what is drawn, numbers as numbers
  const standings = data.standings.slice(0, 50);
  const names = [...new Set(standings.flatMap(one => Object.keys(one.figures)))].slice(0, 20);
  const isFigure = figure => figure && [figure.median, figure.low, figure.high, ...figure.samples].every(Number.isFinite);
  const measures = names.map(name => {
    const rows = standings.filter(one => isFigure(one.figures[name])).map(one => ({who: String(one.name), ...one.figures[name]}));
    const unit = String(rows[0]?.unit ?? ''), order = rows.map(row => row.median).sort((a, b) => a - b);
    return {name, unit, rows, best: unit === 'tok/s' ? order.at(-1) : order[0]};
  });
  const agreed = one => one.agreed != null && `${one.agreed} of ${one.compared} tokens the same`;
  const notes = standings.map(one => [`${one.name}:`, one.version, agreed(one), one.notes].filter(Boolean).join(' '));
  const absent = (data.skipped ?? []).map(one => `${one.name} did not take part: ${one.reason}`);
  return {about: [data.model, data.cpu, data.kernels, `${data.threads} threads`].join(' · '), measures, notes: [...notes, ...absent]};
}

function Measure({name, unit, rows, best}) {
  const most = Math.max(...rows.map(row => row.high), 1e-9), x = value => 100 * value / most;
  return html`<figure><figcaption><b>${name}</b> ${unit}, ${unit === 'tok/s' ? 'more' : 'less'} is better</figcaption>
    <table class="parts"><tbody>${rows.map(row => html`<tr><th scope="row">${row.who}</th>
    <td><svg viewBox="0 0 100 10" preserveAspectRatio="none" role="img" aria-label=${`${row.who}: ${row.median.toPrecision(3)} ${unit}`}>
      <rect class="median" y="1" width=${x(row.median)} height="8"/>
      ${row.samples.map(sample => html`<rect class="sample" x=${x(sample)} y="0" width=".6" height="10"/>`)}</svg></td>
    <td class="num">${row.median.toPrecision(3)}${row.median === best ? ' ★' : ''}</td></tr>`)}</tbody></table></figure>`;
}
