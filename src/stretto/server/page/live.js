// One live connection for all tabs of a browser, of which it allows a host six: the leader has it and tells the others.
// A tab leads or follows while it is shown; the leader's connection is closed with it, and reopened after a loss.
import {events, key} from './api.js';

const FIRST_WAIT_MS = 1000, LONGEST_WAIT_MS = 15000, QUIET_MS = 20000, LOG_LINES = 200, ANSWER_MS = 100;
const watchers = new Set(), cellWatchers = new Set();
let wanted = {cells: false, model: null}, abort = null, timer = null, silence = null, wait = FIRST_WAIT_MS, refused = false;

// Tabs with the same key, and cells of the same model or none, need one connection. The one with the least id leads.
const id = Math.random(), channel = new BroadcastChannel('stretto.live');
let role = null, leader = null; // role: null, 'asking', 'leading', 'following'
const topic = () => wanted.cells && wanted.model || '', say = more => channel.postMessage({id, key: key.get(), topic: topic(), ...more});
const suffices = (theirs, mine) => !mine || mine === theirs;

export const live = {
  state: {connected: false, problem: null, hello: null, stats: null, history: null, requests: [], keys: [], logs: [], model: null},
  // fn(state, event) is called with every event, and without one when the connection comes or goes.
  subscribe(fn) { watchers.add(fn); return () => watchers.delete(fn); },
  onCells(fn) { cellWatchers.add(fn); return () => cellWatchers.delete(fn); },
  want(change) {
    const next = {...wanted, ...change};
    if (next.cells === wanted.cells && next.model === wanted.model) return;
    wanted = next;
    live.state.model = wanted.model;
    reopen();
  },
  retry() { refused = false; reopen(); },
};

function tell(event) { for (const fn of [...watchers]) fn(live.state, event); }

function take(event) {
  const {state} = live;
  listen();
  if (event.hello) { state.hello = event.hello; state.logs = []; wait = FIRST_WAIT_MS; } // all lines come again
  if (event.history) state.history = event.history;
  if (event.stats) state.stats = event.stats;
  if (event.requests) state.requests = event.requests;
  if (event.keys) state.keys = event.keys;
  if (event.logs) state.logs = [...state.logs, ...event.logs].slice(-LOG_LINES);
  if (event.cells) for (const fn of [...cellWatchers]) fn(event.cells);
  if (!state.connected) { state.connected = true; tell(); }
  if (!event.cells) tell(event);
}

// A frame's columns come compressed, one after the other.
async function unpacked({columns, ...frame}) {
  const packed = Uint8Array.from(atob(columns), one => one.charCodeAt(0)), {n} = frame;
  const bytes = await new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream('deflate'))).arrayBuffer();
  return {...frame, positions: new Int32Array(bytes, 0, n), set: new Uint16Array(bytes, 4 * n, n), image: new Uint8Array(bytes, 6 * n, n)};
}

// A connection that says nothing is dead, though no error tells: the machine was asleep, or in another network.
function listen() {
  clearTimeout(silence);
  silence = setTimeout(reopen, QUIET_MS);
}

function close() {
  clearTimeout(timer);
  clearTimeout(silence);
  abort?.abort();
  abort = null;
}

function disconnected() {
  if (live.state.connected) { live.state.connected = false; tell(); }
}

function leave() {
  close();
  if (role === 'leading') say({kind: 'gone'});
  role = leader = null;
}

function reopen() {
  leave();
  if (document.hidden || refused) return disconnected();
  timer = setTimeout(ask, 0); // several changes of one moment become one connection
}

function ask() {
  role = 'asking';
  say({kind: 'ask'});
  timer = setTimeout(lead, ANSWER_MS);
}

function lead() {
  role = 'leading';
  say({kind: 'lead'});
  follow();
}

function obey(one) {
  close();
  if (role === 'leading') say({kind: 'gone'}); // those that followed ask anew
  role = 'following';
  leader = one;
  listen();
}

channel.onmessage = ({data: told}) => {
  if (!role || told.key !== key.get()) return;
  const serves = suffices(told.topic, topic()), served = suffices(topic(), told.topic), is_mine = told.id === leader;
  if (told.kind === 'ask') {
    if (role === 'leading' && served) { say({kind: 'lead'}); close(); timer = setTimeout(follow, 0); } // it needs all from the start
    else if (role === 'asking' && serves && told.id < id) { clearTimeout(timer); timer = setTimeout(lead, 2 * ANSWER_MS); }
  } else if (told.kind === 'lead') {
    if (is_mine && !serves) reopen();
    else if (role === 'asking' ? serves : role === 'leading' && serves && (!served || told.id < id)) obey(told.id);
    else if (role === 'leading' && served) say({kind: 'lead'});
  } else if (is_mine && told.kind === 'event' && (!told.event.cells || topic())) take(told.event);
  else if (is_mine && told.kind === 'lost') { listen(); disconnected(); } else if (is_mine && told.kind === 'gone') reopen();
};

async function follow() {
  const mine = abort = new AbortController();
  live.state.problem = null;
  listen();
  const query = new URLSearchParams({...(wanted.model && {model: wanted.model}), ...(wanted.cells && {cells: '1'})});
  try {
    for await (const event of events(`/stretto/live?${query}`, {signal: mine.signal})) {
      if (event.cells) event.cells = await unpacked(event.cells);
      if (mine !== abort) continue;
      say({kind: 'event', event});
      take(event);
    }
  } catch (error) {
    if (mine !== abort) return; // closed on purpose
    if (error.status === 401) refused = true;
    if (error.status === 429) { live.state.problem = error.message; tell(); } // too many watch
    if (error.status === 404 && wanted.model) wanted = {...wanted, model: null}; // a model that is gone
  }
  if (mine !== abort) return;
  close();
  disconnected();
  say({kind: 'lost'});
  if (refused && key.declined) return leave();
  timer = setTimeout(follow, wait);
  wait = Math.min(2 * wait, LONGEST_WAIT_MS);
}

document.addEventListener('visibilitychange', () => { wait = FIRST_WAIT_MS; reopen(); });
addEventListener('online', reopen);
addEventListener('pagehide', leave);
addEventListener('pageshow', event => { if (event.persisted) reopen(); });
reopen();
