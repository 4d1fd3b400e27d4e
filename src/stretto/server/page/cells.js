// The cells of a model as they change: a map, the sequences beside it, and what is in the cell under the cursor.
import {html, useEffect, useRef, useState} from './vendor/preact.js';
import {get} from './api.js';
import {CellMap} from './map.js';
import {CHANGED, FREED, STATES, Table} from './table.js';
import {number, useLive, visible} from './ui.js';

const FLASH_MS = 600, ASK_MS = 120, ROWS = 100, NEWS = 5;
const LEGEND = {running: 'running', held: 'held by a program', pinned: 'pinned', parked: 'parked (cached)', others: 'other users’',
  image: 'of an image', shared: 'shared (hollow)', stacked: 'several at one position', free: 'free'};
const calm = matchMedia('(prefers-reduced-motion: reduce)'), dark = matchMedia('(prefers-color-scheme: dark)');

// A conversation whose cells are to be shown, of another view: {model, ids, about}.
let wanted = null;
export const take = conversation => { wanted = conversation; };

// The sequence that begins with the most of some tokens, and how many those are.
async function sequenceOf({model, ids}) {
  const {used, sequences} = await get(`/stretto/cells?${new URLSearchParams({model})}`);
  const same = new Map(used.filter(({position, token}) => ids[position] === token).map(({cell, position}) => [cell, position]));
  let best = {id: null, n: 0};
  for (const {id, cells} of sequences) {
    const held = new Set(cells.map(cell => same.get(cell)));
    let n = 0;
    while (held.has(n)) n++;
    if (n > best.n) best = {id, n};
  }
  return best;
}

export default function Cells({model, live}) {
  const canvas = useRef(), map = useRef(), table = useRef(new Table()), chosen = useRef(null), due = useRef(0);
  const [, again] = useState(0), [cursor, move] = useState(null), [selected, select] = useState(null), [about, tell] = useState(''), [news, setNews] = useState([]);
  const {connected} = useLive(), name = model?.name;
  const draw = () => { due.current ||= requestAnimationFrame(paint); };
  const paint = () => {
    const {columns} = map.current;
    due.current = 0;
    map.current.paint(table.current, chosen.current in table.current.sequences ? chosen.current : null);
    if (columns !== map.current.columns) again(n => n + 1); // the cursor has moved
  };

  useEffect(() => {
    map.current = new CellMap(canvas.current);
    const theme = () => { map.current.readColours(); draw(); }, size = new ResizeObserver(draw);
    dark.addEventListener('change', theme);
    size.observe(canvas.current);
    live.want({cells: true});
    return () => {
      live.want({cells: false});
      dark.removeEventListener('change', theme);
      size.disconnect();
      cancelAnimationFrame(due.current);
    };
  }, []);
  useEffect(() => {
    table.current = new Table();
    select(null); move(null); setNews([]); again(n => n + 1);
    return live.onCells(frame => {
      if (frame.model !== name) return;
      const told = table.current.apply(frame);
      flash(told.changed);
      const lines = [...told.added.slice(-NEWS).map(id => grown(table.current, id)),
        ...told.gone.map(({id, n}) => `sequence ${id} is gone (${number(n)} cells)`)];
      if (lines.length) setNews(old => [...lines.reverse(), ...old].slice(0, NEWS));
      again(n => n + 1);
      draw();
    });
  }, [name]);
  useEffect(() => { chosen.current = selected; draw(); }, [selected]);
  useEffect(() => {
    if (wanted?.model !== name || !table.current.n) return;
    const {ids, about} = wanted;
    sequenceOf(wanted).then(({id, n}) => {
      if (id) select(id);
      tell(id ? `Sequence ${id} holds ${number(n)} of the ${number(ids.length)} tokens of ${about}.` : `No cells hold ${about} any more.`);
    }, error => tell(error.message));
    wanted = null;
  });

  const flash = changed => {
    if (!changed?.length || calm.matches) return;
    const {flash} = map.current, {set} = table.current;
    const mark = value => { for (const i of changed) if (i < flash.length) flash[i] = value(i); };
    mark(i => set[i] ? CHANGED : FREED);
    setTimeout(() => { mark(() => 0); draw(); }, FLASH_MS);
  };
  const shown = table.current, known = shown.n > 0 && cursor != null && cursor < shown.n;
  const choose = cell => { // its sequences one after the other, then none
    const ids = shown.idsOf(cell), at = ids.findIndex(id => id == selected);
    select(ids[at + 1] ?? null);
  };
  const keys = event => {
    const {columns, n} = map.current, last = n - 1;
    const step = {ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns, Home: -last, End: last}[event.key];
    if (!n || !(step || ['Enter', ' ', 'Escape'].includes(event.key))) return;
    event.preventDefault();
    if (event.key === 'Escape') select(null);
    else if (step) move(at => Math.max(0, Math.min(last, (at ?? (step === last ? 0 : -step)) + step)));
    else if (known) choose(cursor);
  };
  const point = event => {
    const cell = map.current.at(event.offsetX, event.offsetY);
    if (cell != null) move(cell);
    if (cell != null && event.type === 'click') choose(cell);
  };
  return html`<section><h2>Cells</h2>
      ${!shown.n && html`<p class="soft" id="no-cells">${connected
        ? 'There is nothing to show yet: a model has cells once it is loaded, and its first request loads it.' : 'Waiting for the server…'}</p>`}
      ${about && html`<p role="status" id="about">${about}</p>`}
      <ul class="legend" aria-label="Legend">${Object.entries(LEGEND).map(([key, text]) => html`
        <li key=${key}><i class="dot" style=${{background: `var(--cell-${key})`}}></i>${text}${' '}
          <b id=${`n-${key}`}>${number(shown.counts?.[key] ?? 0)}</b></li>`)}</ul>
      <p class="readout" id="cell" aria-live="polite">${known ? html`<${Told} table=${shown} cell=${cursor} model=${name}/>`
        : 'Point at a cell, or use the arrow keys.'}</p>
      <p class="hidden" id="cells-keys">Arrow keys move, Enter selects the sequence of a cell, Escape none.</p>
      <div class="map"><canvas ref=${canvas} id="map" tabindex="0" role="application" aria-roledescription="map of cells"
          aria-label=${shown.n ? `${number(shown.n)} cells, ${number(shown.n - shown.counts.free)} in use` : 'no cells'}
          aria-describedby="cell cells-keys" onKeyDown=${keys} onPointerMove=${point} onClick=${point}></canvas>
        ${known && html`<div class="cursor" style=${map.current.place(cursor)}></div>`}</div></section>
    <aside><h2>Sequences</h2><${Sequences} ...${{table: shown, selected, select}}/>
      <h2>Changes</h2><ol class="news" id="cells-news">${news.map(line => html`<li>${line}</li>`)}</ol></aside>`;
}

function grown(table, id) {
  const parent = table.parent(id);
  return parent ? `sequence ${id} is a fork of ${parent[0]} (${number(parent[1])} cells shared)` : `sequence ${id} is new`;
}

// A sentence about a cell. Its token is asked for when the cursor rests.
function Told({table, cell, model}) {
  const [token, set] = useState(null), ids = table.idsOf(cell);
  const key = `${model}/${cell}/${table.set[cell]}/${table.positions[cell]}`, isKnown = token?.key === key && token.piece != null;
  useEffect(() => {
    let current = true;
    const timer = ids.length && setTimeout(async () => {
      const found = await get(`/stretto/cells/at?${new URLSearchParams({model, cell})}`).catch(() => null);
      if (current && found) set({key, ...found});
    }, ASK_MS);
    return () => { current = false; clearTimeout(timer); };
  }, [key]);
  if (!ids.length) return html`Cell ${cell}: ${table.set[cell] ? 'in use by another user' : 'free'}`;
  const some = ids.slice(0, 8).join(', ') + (ids.length > 8 ? '…' : '');
  return html`Cell ${cell}: ${isKnown && html`<code>${visible(token.piece)}</code> (token ${token.token}), `}${table.image[cell] ? 'of an image, ' : ''}${
    `position ${table.positions[cell]}, ${STATES[table.state(ids)]}, `}${ids.length > 1 ? `shared by ${ids.length} sequences: ${some}` : `sequence ${some}`}`;
}

function Sequences({table, selected, select}) {
  const all = Object.entries(table.sequences), rank = ({state}) => STATES.indexOf(state);
  if (!all.length) return html`<p class="soft">There are none.</p>`;
  all.sort(([, a], [, b]) => rank(b) - rank(a) || b.n - a.n);
  return html`<div class="sequences" tabindex="0" role="group" aria-label="Sequences and their cells"><table>
    <thead><tr><th scope="col">Sequence</th><th scope="col">State</th><th scope="col" class="num">Cells</th></tr></thead>
    <tbody>${all.slice(0, ROWS).map(([id, {state, mine, n}]) => html`<tr key=${id}>
      <td><button type="button" aria-pressed=${id == selected} onClick=${() => select(id == selected ? null : id)}>${id}</button></td>
      <td>${state}${mine ? '' : ', another user’s'}</td><td class="num">${number(n)}</td></tr>`)}</tbody></table></div>
    ${all.length > ROWS && html`<p class="soft">and ${number(all.length - ROWS)} more</p>`}`;
}
