// The tree of texts, as plain data. A node is one request: its tokens come behind the first `at` tokens of its parent.
export const newTree = () => ({nodes: new Map(), serial: 0});

export function addNode(tree, {parent = null, at = 0, tokens = [], request, kind}) {
  const node = {id: ++tree.serial, parent, at, tokens, request, kind, tail: '', calls: [], usage: null, timings: null, finish: null};
  tree.nodes.set(node.id, node);
  return node;
}

// All tokens of a node's text, those shared with its ancestors first.
export function path(tree, node) {
  if (!node) return [];
  return node.kind === 'start' ? node.tokens : [...path(tree, tree.nodes.get(node.parent)).slice(0, node.at), ...node.tokens];
}

export const ids = tokens => tokens.filter(token => !token.end).map(token => token.id);
export const answer = (tree, node) => path(tree, node).map(token => token.reasoning ? '' : token.content).join('') + (node?.tail ?? '');
export const thoughts = (tree, node) => path(tree, node).map(token => token.reasoning ? token.content : '').join('');
export const children = (tree, id) => [...tree.nodes.values()].filter(node => node.parent === id);

// A short name of a node: what it adds.
export function label(node) {
  const text = node.tokens.slice(0, 12).map(token => token.text).join('').trim() || node.tail.trim();
  return text.length > 40 ? `${text.slice(0, 40)}…` : text || '…';
}

// A token of a stream's chunk, or null if the chunk has none. A half character is shown when its other half has come.
export function tokenOf(choice) {
  const delta = choice.delta, isEnd = choice.token_ids?.length === 0;
  const content = delta ? delta.reasoning_content ?? delta.content ?? '' : choice.text ?? '';
  const more = {content, reasoning: !!delta && 'reasoning_content' in delta, end: isEnd};
  if (!choice.logprobs) return null;
  const one = delta ? choice.logprobs.content[0] : null;
  if (delta) return one ? {id: one.token_id, text: one.token, logprob: one.logprob, top: one.top_logprobs.map(alternative), ...more} : null;
  const {tokens, token_ids, token_logprobs, top_tokens} = choice.logprobs;
  return tokens.length ? {id: token_ids[0], text: tokens[0], logprob: token_logprobs[0], top: top_tokens[0].map(alternative), ...more} : null;
}
const alternative = ({token, token_id, logprob}) => ({id: token_id, text: token, logprob});

export const given = (id, text, logprob = null, top = []) => ({id, text, logprob, top, content: text, reasoning: false, end: false});
