// The tokens of a text. They are appended to the document directly, once a frame: a stream makes no other work.
import {html, useEffect, useLayoutEffect, useRef} from './vendor/preact.js';
import {onTokens} from './session.js';
import {path} from './tree.js';
import {grade, percent} from './ui.js';

export const probability = token => token.logprob == null ? null : Math.exp(token.logprob);

function spanOf(token, index) {
  const span = document.createElement('span'), p = probability(token);
  span.className = `t ${p == null ? 'given' : grade(p)}${token.end ? ' end' : ''}`;
  span.textContent = token.text.includes('\ufffd') ? token.content : token.text;
  span.dataset.i = index;
  span.title = p == null ? 'typed' : percent(p);
  return span;
}

// Append a token to a text. Each paragraph is a block of its own: only the last one is laid out again as tokens come.
function put(text, span) {
  const last = text.lastChild;
  if (last && !last.lastChild.textContent.endsWith('\n')) last.append(span);
  else text.appendChild(document.createElement('div')).append(span);
}

// Arrow keys move over the tokens, Enter goes to the alternatives.
export function TokenText({tree, node, chosen, choose, enter}) {
  const group = useRef(), said = useRef(), thought = useRef(), fold = useRef(), n = useRef(0), nThoughts = useRef(0);
  const append = () => {
    const all = path(tree, node);
    for (; n.current < all.length; n.current++) {
      const token = all[n.current];
      put((token.reasoning ? thought : said).current, spanOf(token, n.current));
      nThoughts.current += token.reasoning;
    }
    fold.current.hidden = !nThoughts.current;
    fold.current.firstChild.textContent = `Reasoning, ${nThoughts.current} tokens`;
  };
  useLayoutEffect(() => {
    said.current.replaceChildren();
    thought.current.replaceChildren();
    n.current = nThoughts.current = 0;
    append();
  }, [node.id]);
  useEffect(() => onTokens(append), [node.id]);
  useLayoutEffect(append);
  useLayoutEffect(() => {
    const span = chosen == null ? null : group.current.querySelector(`[data-i="${chosen}"]`);
    if (span?.closest('details')) fold.current.open = true;
    span?.classList.add('on');
    span?.scrollIntoView({block: 'nearest'});
    return () => span?.classList.remove('on');
  }, [chosen, node.id]);
  const click = event => { const at = event.target.dataset?.i; if (at != null) choose(+at); };
  const move = event => {
    if (event.target !== group.current || !n.current) return;
    const last = n.current - 1, now = chosen ?? -1;
    const to = {ArrowLeft: Math.max(0, now - 1), ArrowRight: Math.min(last, now + 1), Home: 0, End: last}[event.key];
    if (to != null) { event.preventDefault(); choose(to); }
    if (event.key === 'Enter' && chosen != null) { event.preventDefault(); enter(); }
  };
  const label = 'Answer, token by token';
  return html`<div ref=${group} id="text" role="group" aria-label=${label} tabindex="0" onClick=${click} onKeyDown=${move}>
    <details ref=${fold} hidden><summary></summary><div ref=${thought} class="text thoughts"></div></details>
    <div ref=${said} class="text"></div></div>`;
}
