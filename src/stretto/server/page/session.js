// What Play holds while the tab is open: the conversation, the options, the tree of texts, and the running request.
// Messages are replaced, never changed: nodes of the tree share them, and the images in them.
import {events, post} from './api.js';
import {FieldError, controlOf, fields} from './options.js';
import {addNode, answer, given, ids, newTree, path, thoughts, tokenOf} from './tree.js';

const ALTERNATIVES = 10;
const ENDS = ['timeout', 'repetition'];  // told as "length"
const watchers = new Set(), tokenWatchers = new Set();
const user = () => ({role: 'user', content: '', images: []});
let frame = 0, abort = null;

const nothing = () => ({tree: newTree(), current: null, chosen: null, error: null, prompt: '', messages: [user()]});
export const session = {...nothing(), busy: false, mode: 'chat', values: {}};
export const subscribe = fn => { watchers.add(fn); return () => watchers.delete(fn); };
export const onTokens = fn => { tokenWatchers.add(fn); return () => tokenWatchers.delete(fn); };
export const node = () => session.tree.nodes.get(session.current);
export const tokens = () => path(session.tree, node());

export function change(fields) {
  Object.assign(session, fields);
  for (const fn of [...watchers]) fn();
}

// However many tokens have come, they are drawn once a frame.
function arrived() {
  frame ||= requestAnimationFrame(() => { frame = 0; for (const fn of [...tokenWatchers]) fn(); });
}

// A message as the API takes it, for the chat as well.
export function wire({role, content, images, tool_calls, tool_call_id, reasoning_content}) {
  const parts = (images ?? []).map(url => ({type: 'image_url', image_url: {url}}));
  const said = parts.length ? [...parts, {type: 'text', text: content}] : content;
  const more = Object.entries({tool_calls, tool_call_id, reasoning_content}).filter(([, value]) => value);
  return {role, content: said, ...Object.fromEntries(more)};
}

function requestOf(model, {mode, messages, prompt}) {
  const chat = mode === 'chat', input = chat ? {messages: messages.map(wire)} : {prompt};
  const body = {model, ...input, ...fields(session.values, chat)};
  return {path: chat ? '/v1/chat/completions' : '/v1/completions', body, source: {mode, messages, prompt}};
}

function guarded(make) {
  try { return make(); } catch (error) {
    if (!(error instanceof FieldError)) throw error;
    change({error});
    return null;
  }
}

async function run(place, request, begun = []) {
  stop();
  const mine = abort = new AbortController(), before = session.current;
  const add = () => addNode(session.tree, {...place, tokens: [...place.tokens], request: {...request, begun}}), nodes = [add()];
  change({current: nodes[0].id, chosen: null, busy: true, error: null});
  const more = request.source.mode === 'chat' ? {logprobs: true, top_logprobs: ALTERNATIVES} : {logprobs: ALTERNATIVES};
  const body = {...request.body, ...more, stream: true, stream_options: {include_usage: true}, return_token_ids: true};
  if (begun.length) body.continue_token_ids = begun;
  try {
    for await (const chunk of events(request.path, {method: 'POST', body, signal: mine.signal})) {
      for (const choice of chunk.choices) take(nodes[choice.index] ??= add(), choice);
      if (chunk.usage) for (const one of nodes) Object.assign(one, {usage: chunk.usage, timings: chunk.timings});
      arrived();
    }
  } catch (error) {
    if (error.name === 'AbortError') nodes[0].finish ??= 'stopped';
    else if (error.code === 'already_ended') nodes[0].finish = 'stop';
    else {
      if (!nodes[0].tokens.length) { // refused: as if it had not been asked for
        session.tree.nodes.delete(nodes[0].id);
        if (session.current === nodes[0].id) session.current = before;
      }
      nodes[0].finish ??= 'failed';
      session.error = Object.assign(error, {param: controlOf(error.param)});
    }
  }
  if (abort === mine) { abort = null; session.busy = false; }
  change({});
}

function take(one, choice) {
  const token = tokenOf(choice);
  if (token) one.tokens.push(token);
  else one.tail += choice.delta?.content ?? choice.text ?? '';
  for (const {index, ...call} of choice.delta?.tool_calls ?? []) {
    if (call.id) one.calls[index] = call;
    else one.calls[index].function.arguments += call.function.arguments;
  }
  if (choice.finish_reason) one.finish = ENDS.includes(choice.stop_reason) ? choice.stop_reason : choice.finish_reason;
}

export function stop() {
  abort?.abort();
  abort = null;
  change({busy: false});
}

function start(model, parent = null) {
  const {mode, messages, prompt} = session, source = {mode, messages, prompt};
  const request = guarded(() => requestOf(model, source));
  if (request) return run({kind: 'start', parent, tokens: []}, request);
}

// The answer to the conversation, or the continuation of the prompt, as they are in the form.
export function generate(model) {
  let root = node();
  while (root && root.kind !== 'start') root = session.tree.nodes.get(root.parent);
  return start(model, root?.parent ?? null);
}

// Go on from the first `at` tokens of the current text and those in `first`: with its own model, whose ids they are.
function goOn(at, first) {
  const from = node(), kept = path(session.tree, from).slice(0, at);
  const request = guarded(() => requestOf(from.request.body.model, from.request.source));
  if (request) return run({kind: 'fork', parent: from.id, at, tokens: first}, request, ids([...kept, ...first]));
}

export function fork(at, {id, text, logprob}) {
  const old = tokens()[at];
  return goOn(at, [{...given(id, text, logprob, old.top), reasoning: old.reasoning}]);
}

export async function edit(at, text) {
  try {
    const {model} = node().request.body;
    const found = text ? await post('/stretto/tokenize', {model, text, inside: true}) : {tokens: [], pieces: []};
    const {reasoning} = tokens()[at];
    return await goOn(at, found.tokens.map((id, i) => ({...given(id, found.pieces[i]), reasoning})));
  } catch (error) { change({error}); }
}

export function continueText() {
  const all = tokens();
  return goOn(all.at(-1)?.end ? all.length - 1 : all.length, []);
}

// The conversation with the answer in it, and what comes after it.
export function reply(model, ...after) {
  const from = node(), said = answer(session.tree, from), reasoning_content = thoughts(session.tree, from);
  const tool_calls = from.calls.length ? from.calls : undefined;
  const mine = {role: 'assistant', content: said, images: [], reasoning_content, tool_calls};
  change({messages: [...from.request.source.messages, mine, ...after.map(one => ({images: [], ...one}))]});
  return start(model, from.id);
}

export function select(id) {
  const {mode, messages, prompt} = session.tree.nodes.get(id).request.source;
  change({current: id, chosen: null, error: null, ...(mode === 'chat' ? {mode, messages} : {mode, prompt})});
}

export function clear() {
  stop();
  change(nothing());
}
