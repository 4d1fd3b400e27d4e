// The tree of texts, as plain data. A node is one request: its tokens come behind the first `at` tokens of its parent.
export const newTree = () => ({nodes: new Map(), serial: 0});

export function addNode(tree, {parent = null, at = 0, tokens = [], request, kind}) {
  const empty = {tail: '', calls: [], usage: null, timings: null, finish: null};
  const node = {id: ++tree.serial, parent, at, tokens, request, kind, ...empty};
  tree.nodes.set(node.id, node);
  return node;
}

// All tokens of a node's text, those shared with its ancestors first.
export function path(tree, node) {
  if (!node) return [];
  return node.kind === 'start' ? node.tokens : [...path(tree, tree.nodes.get(node.parent)).slice(0, node.at), ...node.tokens];
}

export const ids = tokens => tokens.filter(token => !token.end).map(token => token.id);
const text = tokens => tokens.map(token => token.content).join('');
export const answer = (tree, node) => text(path(tree, node).filter(token => !token.reasoning)) + (node?.tail ?? '');
export const thoughts = (tree, node) => text(path(tree, node).filter(token => token.reasoning));
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
  if (delta) {
    const [one] = choice.logprobs.content;
    return one ? {...alternative(one), top: one.top_logprobs.map(alternative), ...more} : null;
  }
  const {tokens: [token], token_ids: [token_id], token_logprobs: [logprob], top_tokens: [top]} = choice.logprobs;
  return token == null ? null : {...alternative({token, token_id, logprob}), top: top.map(alternative), ...more};
}
const alternative = ({token, token_id, logprob}) => ({id: token_id, text: token, logprob});

export const given = (id, text, logprob = null, top = []) => (
  {id, text, logprob, top, content: text, reasoning: false, end: false});
