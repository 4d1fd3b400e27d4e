// Load: the last 15 minutes and now, as charts; running requests, to be cancelled; the last lines of the log.
import {html, useEffect, useRef, useState} from './vendor/preact.js';
import {del} from './api.js';
import {live} from './live.js';
import {differs, number, useLive} from './ui.js';
import {Choice} from './forms.js';
import {draw} from './chart.js';
import Replicas from './replicas.js';

const KEPT_SECONDS = 900, COLORS = ['accent', 'bad', 'good', 'soft'];
const short = (n, factor) => n == null ? '–' : Number((factor * n).toPrecision(3)).toLocaleString('en');
const CHARTS = [
  {title: 'Tokens a second', series: {tokens_per_second: 'generated', prompt_per_second: 'of prompts'}},
  {title: 'First token, ms', factor: 1e3, series: {first_token_p50: 'median', first_token_p90: '90 %'}},
  {title: 'Gaps between tokens, ms', factor: 1e3, series: {gap_p50: 'median', gap_p99: '99 %'}},
  {title: 'Requests', series: {running: 'running', waiting: 'waiting'}},
  {title: 'Batch width, tokens a pass', series: {width: 'mean'}},
  {title: 'Prompt tokens from the cache, %', factor: 100, series: {hit_rate: 'cached'}},
  {title: 'Memory, MB', factor: 1e-6, series: {memory_rss: 'the process', memory_loaded: 'models'}},
  {title: 'CPU time, cores', series: {cpu_process: 'all', cpu_steps: 'steps', cpu_loop: 'event loop', cpu_helpers: 'helpers'}},
  {title: 'Errors a second', series: {errors_4xx: '4xx', errors_5xx: '5xx'}},
];
const NAMES = CHARTS.flatMap(chart => Object.keys(chart.series));
const SPANS = [['60', 'the last minute'], ['300', '5 minutes'], ['900', '15 minutes']];

// -- the figures: collected from the moment this view is first shown, whichever view is shown then --

let columns = Object.fromEntries(['time', ...NAMES].map(name => [name, []]));

function flat(stats) { // {cpu: {process: 1}} as {cpu_process: 1}, the names of the history's columns
  const parts = Object.entries(stats).filter(([name]) => name !== 'models');
  return Object.fromEntries(parts.flatMap(([name, value]) => value !== null && typeof value === 'object'
    ? Object.entries(value).map(([part, one]) => [`${name}_${part}`, one]) : [[name, value]]));
}

function collect(state, event) {
  if (event?.history) {
    const past = event.history.columns, n = past.time.length;
    columns = Object.fromEntries(['time', ...NAMES].map(name => [name, past[name] ?? Array(n).fill(null)]));
  }
  if (!event?.stats) return;
  const now = flat(event.stats), last = columns.time.at(-1) ?? 0;
  if (now.time <= last) return;
  const gap = last && now.time - last > 5; // a tab that was asleep: no line across
  for (const [name, column] of Object.entries(columns)) {
    if (gap) column.push(name === 'time' ? now.time - 1 : null);
    column.push(now[name] ?? null);
    column.splice(0, column.length - KEPT_SECONDS);
  }
}
live.subscribe(collect);
if (live.state.history) { // it comes at the beginning of a connection; a new one brings what has happened since
  const known = live.state.history.columns.time.at(-1); // before more is appended
  collect(live.state, live.state);
  if (live.state.stats?.time - known > 3) live.retry();
}

export default function Load() {
  const {connected, stats, requests, keys, logs} = useLive(), [span, set] = useState('900'), dark = useDark();
  return html`<section class="wide"><h2>Load</h2>
    <${Choice} label="Show" inline value=${span} options=${SPANS} set=${set}/>
    ${!connected && !stats && html`<p class="soft">Waiting for the server’s figures.</p>`}
    <div class="charts">${CHARTS.map(chart => html`<${Chart} key=${chart.title} ...${chart} dark=${dark} span=${Number(span)}
      time=${columns.time.at(-1)}/>`)}</div></section>
    <${Replicas}/>
    ${keys.length > 0 && html`<section class="wide"><h2>Keys</h2><${Keys} keys=${keys}/></section>`}
    <section class="wide"><h2>Requests</h2><${Requests} requests=${requests}/></section>
    ${logs.length > 0 && html`<section class="wide"><h2>Log</h2>
      <pre class="logs" tabindex="0" aria-label="The last lines of the log">${logs.slice(-100).join('\n')}</pre></section>`}`;
}

function useDark() {
  const query = matchMedia('(prefers-color-scheme: dark)'), [dark, set] = useState(query.matches);
  useEffect(() => {
    const change = () => set(query.matches);
    query.addEventListener('change', change);
    return () => query.removeEventListener('change', change);
  }, []);
  return dark;
}

// -- charts --

function data(series, factor, span) {
  const first = (columns.time.at(-1) ?? 0) - span, from = Math.max(0, columns.time.findIndex(time => time >= first));
  const scaled = name => columns[name].slice(from).map(value => value == null ? null : factor * value);
  return [columns.time.slice(from), Object.keys(series).map(scaled)];
}

function Chart({title, series, factor = 1, span, time, dark}) {
  const canvas = useRef(), [width, resized] = useState(0);
  useEffect(() => {
    const watch = new ResizeObserver(() => resized(canvas.current.clientWidth));
    watch.observe(canvas.current);
    return () => watch.disconnect();
  }, []);
  useEffect(() => { draw(canvas.current, ...data(series, factor, span), COLORS, span); }, [time, span, width, dark]);
  const now = Object.entries(series).map(([name, word]) => `${word} ${short(columns[name].at(-1), factor)}`);
  return html`<figure>
    <figcaption><b>${title}</b> ${now.map((one, i) => html`<span class=${`swatch s${i}`}>${one}</span> `)}</figcaption>
    <canvas ref=${canvas} role="img" aria-label=${`${title}: ${now.join(', ')}`}></canvas></figure>`;
}

// -- keys --

function Keys({keys}) {
  const of = (n, most) => most == null ? number(n) : `${number(n)} of ${number(most)}`;
  const facts = ({requests, tokens, refused, limits}) => `${of(requests, limits.requests)} requests · ${of(tokens, limits.tokens)} tokens in the last minute${
    limits.cells == null ? '' : ` · ${number(limits.cells)} cells at most`} · weight ${limits.weight}${refused ? ` · ${number(refused)} refused` : ''}`;
  return html`<ul class="cards">${keys.map(one => html`<li key=${one.key} class="row"><span><b>${one.key}</b> ${facts(one)}</span></li>`)}</ul>`;
}

// -- requests --

function Requests({requests}) {
  const [problem, fail] = useState(null);
  const cancel = id => async () => {
    try { await del(`/stretto/requests/${encodeURIComponent(id)}`); fail(null); } catch (error) { fail(error.message); }
  };
  const facts = one => `${one.state} · ${number(one.prompt_tokens)} tokens of prompt, ${number(one.cached)} cached · ${
    number(one.tokens)} generated · ${one.seconds.toFixed(1)} s${one.mine ? '' : ' · of another key'}`;
  return html`${problem && html`<p class="bad" role="alert">${problem}</p>`}
    ${!requests.length && html`<p class="soft">Nothing runs.</p>`}
    <ul class="cards">${requests.map(one => html`<li key=${one.id} class="row">
      <span><b>${one.model}</b> ${facts(one)}<br/><small>${one.path} ${one.id}${
        one.cache_difference ? ` · ${differs(one.cache_difference)}` : ''}</small></span>
      <button type="button" aria-label=${`Cancel ${one.id}`} onClick=${cancel(one.id)}>Cancel</button></li>`)}</ul>`;
}
