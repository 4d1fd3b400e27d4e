// Answers as they come: one request for each message that is being written, kept every moment so that a reload goes on with it.
// The server holds a running answer for a minute: `message.stream` is its id and the number of the last event that has come.
import {del, events, post} from './api.js';
import {add, before, changed, erase, hold, messageOf, messagesOf, newId, onRemoval, open, release, save, store, tokensOf} from './chats.js';
import {live} from './live.js';
import {fields} from './options.js';
import {wire} from './session.js';
import {definitions, run, runsHere} from './toolbox.js';
import {given, ids, tokenOf} from './tree.js';

export const ABANDONED_MS = 5000; // since its tab has written it
const KEPT_MS = 60000; // by the server, without a reader
const ALTERNATIVES = 8, SAVE_MS = 300, TOOL_ROUNDS = 8;
const ENDS = ['timeout', 'repetition']; // told as "length"
const WHAT = {context_length_exceeded: 'This conversation does not fit into the context of the model any more. Delete earlier messages, or begin a new chat.'};
const CUT = ['unreachable', 'shutting_down', 'replica_lost'];
const AGAIN_MS = 3000; // before a stream that was cut, alone of its page's connections, is asked for again
const GONE = ['not_found', 'events_gone', 'invalid_value']; // the server does not have the stream any more
const running = new Map(), frames = new Map(); // by messages' ids: aborts, and what draws them
const said = new Map(); // tokens of messages, once they were wanted
let frame = 0;
const due = new Set();

// A reload keeps the tab's name, so it knows which answers were its own.
export const tab = sessionStorage.getItem('stretto.tab') ?? newId();
sessionStorage.setItem('stretto.tab', tab);

export const isRunning = message => running.has(message.id);
export const runningIn = chat => [...running.values()].find(one => one.message.chat === chat?.id);
export function stop(message) {
  lost.delete(message);
  running.get(message.id)?.abort.abort();
  if (message.stream) del(`/stretto/streams/${message.stream.id}`).catch(() => {});
  message.stream = null;
}

// What the server's end or a phone's sleep has cut goes on when the server is there again.
const lost = new Set();
function goOn() {
  if (!live.state.connected) return;
  const all = [...lost];
  lost.clear();
  for (const message of all) if (message.finish === 'failed' && !isRunning(message)) write(message);
}
live.subscribe((state, event) => { if (!event) goOn(); });

// A message that is removed is not written any more, and nothing of it is kept.
onRemoval(isGone => {
  for (const message of lost) if (isGone(message)) lost.delete(message);
  for (const one of [...running.values()].filter(({message}) => isGone(message))) {
    one.isGone = true;
    stop(one.message);
  }
});

// fn() is called once a frame while a message is being written.
export function onMessage(id, fn) {
  frames.set(id, fn);
  return () => { if (frames.get(id) === fn) frames.delete(id); };
}
function draw(message) {
  due.add(message.id);
  frame ||= requestAnimationFrame(() => {
    frame = 0;
    const ids = [...due];
    due.clear();
    for (const id of ids) frames.get(id)?.();
  });
}

export async function tokens(message) {
  if (!said.has(message.id)) said.set(message.id, await tokensOf(message));
  return said.get(message.id);
}
export const tokensNow = message => said.get(message.id);

// The request for a message: the conversation before it, under the present settings.
export function requestOf(message, all = store.messages) {
  const {system = '', values = {}, tools: chosen} = store.settings, {max_tokens, n, tools = [], ...rest} = fields(values, true); // an answer is one text
  const functions = [...tools, ...definitions(chosen)];
  const messages = before(message, all).map(({role, content, images, calls, call, reasoning}) => (
    wire({role, content, images, tool_calls: calls?.length ? calls : null, tool_call_id: call, reasoning_content: reasoning})));
  if (system.trim()) messages.unshift({role: 'system', content: system});
  return {model: message.model, messages, ...rest, ...(functions.length ? {tools: functions} : {}), ...(values.max_tokens ? {max_tokens} : {})};
}

// What comes of an answer: the rest of its stream if the server still has that, otherwise what follows its tokens.
async function* chunksOf(message, list, signal, restOnly) {
  let number = message.stream?.n ?? 0;
  const from = async function* (path, options) {
    for await (const chunk of events(path, {...options, signal})) {
      if (message.stream) message.stream = {...message.stream, n: ++number};
      yield chunk;
    }
  };
  if (message.stream) {
    try {
      yield* from(`/stretto/streams/${message.stream.id}?after=${number}`);
      return;
    } catch (error) {
      if (!GONE.includes(error.code)) throw error;
      message.stream = null;
      if (restOnly) throw Object.assign(error, {name: 'AbortError'});
    }
  }
  const more = {logprobs: true, top_logprobs: ALTERNATIVES, return_token_ids: true, stream: true, stream_options: {include_usage: true}};
  const body = {...requestOf(message, await messagesOf(message.chat)), ...more, resumable: true}, begun = ids(list);
  if (begun.length) body.continue_token_ids = begun;
  number = 0;
  const opened = headers => { const id = headers.get('x-stretto-stream'); message.stream = id && {id, n: 0}; };
  yield* from('/v1/chat/completions', {method: 'POST', body, opened});
}

// Writes a message, behind the tokens that it has: those of an answer that was cut, or that a fork keeps.
// `restOnly`: what the server still has of it, and nothing new.
export async function write(message, restOnly = false) {
  const mine = {message, abort: new AbortController()};
  running.set(message.id, mine);
  hold(message);
  note();
  const list = await tokens(message), reasoned = message.reasoned ?? 0;
  let saved = 0, thinking = null, last = performance.now(), has = false;
  Object.assign(message, {running: tab, error: null, param: null, finish: null});
  const keep = () => {
    saved = performance.now();
    message.touched = Date.now();
    return mine.isGone ? erase([message.id]) : save(null, [message], said);
  };
  changed();
  try {
    if (!list.length && message.content) list.push(...await tokenized(message)); // it was brought in from a file
    keep();
    for await (const chunk of chunksOf(message, list, mine.abort.signal, restOnly)) {
      const at = performance.now();
      has = true;
      for (const choice of chunk.choices) {
        const token = tokenOf(choice), delta = choice.delta ?? {};
        if (token) list.push({...token, ms: at - last});
        message.content += delta.content ?? '';
        if (delta.reasoning_content) {
          message.reasoning = (message.reasoning ?? '') + delta.reasoning_content;
          message.reasoned = reasoned + at - (thinking ??= at);
        }
        for (const {index, ...call} of delta.tool_calls ?? []) {
          message.calls ??= [];
          if (call.id) message.calls[index] = call;
          else message.calls[index].function.arguments += call.function.arguments;
        }
        if (choice.finish_reason) message.finish = ENDS.includes(choice.stop_reason) ? choice.stop_reason : choice.finish_reason;
      }
      last = at;
      if (chunk.usage) message.stats = statsOf(chunk);
      message.version++;
      draw(message);
      if (at - saved > Math.max(SAVE_MS, list.length)) keep(); // a long answer takes longer to write
    }
  } catch (error) {
    if (error.name === 'AbortError') message.finish = 'stopped';
    else if (error.code === 'already_ended') message.finish = 'stop';
    else Object.assign(message, {finish: 'failed', error: WHAT[error.code] ?? error.message, param: error.param ?? null});
    if (error.code === 'taken_over') return leave(message);
    if (CUT.includes(error.code)) {
      lost.add(message);
      if (has) setTimeout(goOn, AGAIN_MS); // one that gets nothing is not asked for again and again
    }
  }
  running.delete(message.id);
  release(message);
  if (!lost.has(message)) message.stream = null;
  message.running = null;
  message.version++;
  await keep();
  note(); // behind what is kept: a page that is left gets here no more
  changed();
  const known = message.calls?.every(({function: {name}}) => runsHere(name) && store.settings.tools?.[name]);
  if (message.finish === 'tool_calls' && known && store.chat?.id === message.chat && roundsOf(message) < TOOL_ROUNDS) {
    answerCalls(message, message.calls.map(run));
  }
}

// Another tab writes it from now on: what is kept is newer.
function leave(message) {
  running.delete(message.id);
  release(message);
  said.delete(message.id);
  return store.chat?.id === message.chat ? open(message.chat) : null;
}

const roundsOf = message => {
  const all = before(message), asked = all.findLastIndex(one => one.role === 'user');
  return all.slice(asked).filter(one => one.calls?.length).length;
};
// The results of a message's calls, and an answer to them.
export function answerCalls(message, results) {
  let parent = message.id;
  for (const [i, call] of message.calls.entries()) parent = add({parent, role: 'tool', call: call.id, content: results[i]}).id;
  return write(add({parent, role: 'assistant', model: message.model}));
}

async function tokenized({model, content}) {
  const found = await post('/stretto/tokenize', {model, text: content, inside: true});
  return found.tokens.map((id, i) => given(id, found.pieces[i]));
}

// A version of a message that has its first `i` tokens, another one behind them, and what follows from it.
export const fork = async (message, i, {id, text, logprob}) => forked(message, i, [given(id, text, logprob, (await tokens(message))[i].top)]);
export const forkText = async (message, i, content) => forked(message, i, await tokenized({model: message.model, content}));
async function forked(message, i, first) {
  const list = await tokens(message), {reasoning} = list[i];
  const kept = [...list.slice(0, i), ...first.map(one => ({...one, reasoning, forked: true}))];
  const textOf = which => kept.filter(one => !!one.reasoning === which).map(one => one.content).join('');
  const {parent, model, reasoned} = message;
  const made = add({parent, role: 'assistant', model, content: textOf(false), reasoning: textOf(true) || undefined, reasoned});
  said.set(made.id, kept);
  write(made);
  return made;
}

// The ids of an answer's conversation up to its first `n` tokens, by the model itself: its template, its images left out.
export async function idsUpTo(message, n = Infinity) {
  const body = {...requestOf(message), max_tokens: 0, return_token_ids: true, logprobs: false};
  const {choices: [{prompt_token_ids}]} = await post('/v1/chat/completions', body);
  if (!prompt_token_ids) throw new Error('a conversation with images has no tokens that could be sent as they are');
  return {prompt: prompt_token_ids, answer: ids((await tokens(message)).slice(0, n))};
}

const statsOf = ({usage, timings}) => ({
  tokens: usage.completion_tokens, prompt: usage.prompt_tokens, cached: usage.prompt_tokens_details?.cached_tokens ?? 0,
  speed: timings?.tokens_per_second, first: timings?.first_token});

// Which answers this tab is writing, for its reload: also those of conversations that are not open then.
const note = () => sessionStorage.setItem('stretto.running', JSON.stringify([...running.keys()]));
const wereRunning = JSON.parse(sessionStorage.getItem('stretto.running') ?? '[]');
export async function resumeElsewhere() {
  for (const id of wereRunning) {
    const message = await messageOf(id);
    if (message?.running === tab && message.chat !== store.chat?.id && !running.has(id)) write(message);
  }
}

// After a reload: what this tab was writing is gone on with; what no tab writes any more gets the rest that the server has, and can be continued.
export function resume() {
  for (const message of store.messages.values()) {
    if (isRunning(message)) continue;
    // Firefox tells a page that it leaves that its connections were lost, so it is written down as that.
    const isLost = message.finish === 'failed' && message.stream && Date.now() - message.touched < KEPT_MS;
    if (!message.running) { if (isLost) write(message, true); }
    else if (message.running === tab) write(message);
    else if (Date.now() - message.touched <= ABANDONED_MS) continue;
    else if (message.stream) write(message, true);
    else Object.assign(message, {running: null, finish: 'stopped'});
  }
}
