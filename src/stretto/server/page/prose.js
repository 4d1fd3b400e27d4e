// A model's text as nodes: blocks from markdown-it's tokens, code coloured by Prism, formulas as MathML. Markdown of a model can
// only become the nodes that are made here: never HTML, never a request.
import {html, useEffect, useLayoutEffect, useRef, useState} from './vendor/preact.js';
import MarkdownIt from './vendor/markdown-it.js';
import Prism from './vendor/prism.js';
import {Copy} from './ui.js';

const PLAIN_CHARS = 400_000, INLINE_CHARS = 10_000, FORMULA_CHARS = 4000, DEPTH = 40, LINKS = /^(https?:|mailto:)/i;
// Characters that could make a text look like another one.
const CONTROLS = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u206f\ufeff\u{e0000}-\u{e007f}]/gu;
export const harmless = text => text.replace(CONTROLS, '\ufffd');

// ---- formulas: $…$, $$…$$, \(…\), \[…\] ----
const INLINE = [['\\(', '\\)'], ['\\[', '\\]'], ['$$', '$$'], ['$', '$']];
function inlineFormula(state, silent) {
  const {src, pos} = state, [open, close] = INLINE.find(([open]) => src.startsWith(open, pos)) ?? [];
  if (!open) return false;
  const from = pos + open.length, to = src.indexOf(close, from), text = src.slice(from, to);
  // A dollar sign is one of money unless letters touch it from inside.
  if (to <= from || (open === '$' && (/^\s|\s$/.test(text) || /\d/.test(src[to + 1] ?? '')))) return false;
  if (!silent) Object.assign(state.push('formula', 'math', 0), {content: text, meta: {block: open === '$$' || open === '\\['}});
  state.pos = to + close.length;
  return true;
}
function blockFormula(state, startLine, endLine, silent) {
  const line = n => state.src.slice(state.bMarks[n] + state.tShift[n], state.eMarks[n]);
  const open = ['$$', '\\['].find(one => line(startLine).startsWith(one)), close = open === '$$' ? '$$' : '\\]';
  if (!open) return false;
  let end = startLine, found = line(end).indexOf(close, 2);
  while (found < 0 && end + 1 < endLine) found = line(++end).indexOf(close);
  // One that is never closed, or closed by another's opening, is text. The last of a stream may still be closed.
  if ((found < 0 || open === '$$') && /\n\s*\n/.test(state.src.slice(state.bMarks[startLine], state.eMarks[end]))) return false;
  const whole = found < 0 || line(end).slice(found + close.length).trim() === '';
  if (!whole) return false; // text follows: it is part of a paragraph
  if (silent) return true;
  const lines = [];
  for (let n = startLine; n <= end; n++) lines.push(line(n));
  const text = lines.join('\n').slice(2), content = found < 0 ? text : text.slice(0, text.lastIndexOf(close));
  Object.assign(state.push('formula', 'math', 0), {content, block: true, map: [startLine, end + 1], meta: {block: true}});
  state.line = end + 1;
  return true;
}
const markdown = new MarkdownIt({html: false, linkify: false, breaks: true});
markdown.inline.ruler.before('escape', 'formula', inlineFormula);
markdown.block.ruler.before('paragraph', 'formula', blockFormula, {alt: ['paragraph', 'list']});
markdown.core.ruler.before('inline', 'long', ({tokens}) => { // reading marks can take the square of a paragraph's length
  for (const one of tokens) if (one.type === 'inline' && one.content.length > INLINE_CHARS) one.type = 'text';
});

markdown.core.ruler.push('levels', ({tokens}) => { // headings begin below the page's own, and leave no level out
  const levels = [];
  for (const one of tokens) {
    if (one.type !== 'heading_open') continue;
    const level = Number(one.tag[1]);
    while (levels.at(-1) >= level) levels.pop();
    levels.push(level);
    one.tag = `h${Math.min(6, levels.length + 1)}`;
    one.meta = {large: level < 3};
  }
});

let temml = null;
const loadTemml = () => import('./vendor/temml.js').then(module => { temml = module.default; });
const ATTRIBUTES = new Set(['display', 'mathvariant', 'stretchy', 'fence', 'separator', 'lspace', 'rspace', 'symmetric', 'largeop',
  'movablelimits', 'accent', 'accentunder', 'linethickness', 'displaystyle', 'scriptlevel', 'width', 'height', 'depth', 'voffset',
  'columnalign', 'rowspacing', 'columnspacing', 'rowspan', 'columnspan', 'minsize', 'maxsize', 'form', 'notation', 'mathcolor']);
const MATHS = 'http://www.w3.org/1998/Math/MathML';
function mathNode(one) {
  if (one.text != null) return document.createTextNode(harmless(one.text));
  const known = /^(math|m[a-z]+|semantics)$/.test(one.type ?? ''), node = document.createElementNS(MATHS, known ? one.type : 'mrow');
  for (const [name, value] of Object.entries(one.attributes ?? {})) if (ATTRIBUTES.has(name)) node.setAttribute(name, value);
  node.append(...(one.children ?? []).map(mathNode));
  return node;
}
function Formula({text, block}) {
  const box = useRef(), [, again] = useState(0);
  useEffect(() => { if (!temml) loadTemml().then(() => again(1), () => {}); }, []);
  useLayoutEffect(() => {
    if (!temml || text.length > FORMULA_CHARS) return;
    try {
      box.current.replaceChildren(mathNode(temml.__renderToMathMLTree(text, {displayMode: block, throwOnError: true, maxExpand: 100})));
    } catch { box.current.textContent = harmless(text); }
  });
  return html`<span class=${block ? 'formula block' : 'formula'} ref=${box}>${temml ? null : harmless(text)}</span>`;
}

// ---- code ----
const KINDS = {
  keyword: 'k', boolean: 'k', builtin: 'k', atrule: 'k', tag: 'k', important: 'k', string: 's', char: 's', 'attr-value': 's', regex: 's',
  inserted: 's', url: 's', comment: 'c', prolog: 'c', doctype: 'c', function: 'f', 'class-name': 'f', selector: 'f', property: 'f',
  'attr-name': 'f', number: 'n', deleted: 'd',
};
const LANGUAGES = {py: 'python', js: 'javascript', ts: 'typescript', sh: 'bash', shell: 'bash', zsh: 'bash', html: 'markup', xml: 'markup',
  'c++': 'cpp', cc: 'cpp', h: 'c', rs: 'rust', yml: 'yaml', cs: 'csharp', 'c#': 'csharp', kt: 'kotlin', rb: 'ruby', tex: 'latex', hs: 'haskell',
  golang: 'go', jsonc: 'json', jsx: 'javascript', tsx: 'typescript', ini: 'ini', console: 'bash'};
// Prism's expressions can take more than the square of a text's length: long codes are coloured in pieces, if possible from one
// empty line to another, very long lines are not coloured, and nothing is after some time.
const HIGHLIGHT_CHARS = 60_000, PIECE_CHARS = 4000, LINE_CHARS = 500, HIGHLIGHT_MS = 250;
function* piecesOf(text) {
  let from = 0, gap = 0; // where the piece begins, and behind its last empty line
  for (let at = 0, end; at < text.length; at = end) {
    end = text.indexOf('\n', at) + 1 || text.length;
    const isLong = end - at > LINE_CHARS;
    if (isLong || end - from > PIECE_CHARS) {
      const to = gap > from && !isLong ? gap : at;
      yield [from, to];
      from = isLong ? end : to;
    }
    if (!text.slice(at, end).trim()) gap = end;
  }
  yield [from, text.length];
}
// The coloured ranges of a code: [from, to, kind].
function marksOf(text, language) {
  const grammar = Prism.languages[LANGUAGES[language] ?? language];
  if (!grammar || typeof grammar === 'function' || text.length > HIGHLIGHT_CHARS) return [];
  const marks = [];
  let at = 0;
  const walk = (one, kind) => {
    if (typeof one === 'string') {
      if (kind && one.trim()) marks.push([at, at + one.length, kind]);
      at += one.length;
    } else if (Array.isArray(one)) for (const inner of one) walk(inner, kind);
    else walk(one.content, KINDS[one.type] ?? KINDS[one.alias] ?? kind);
  };
  const until = performance.now() + HIGHLIGHT_MS;
  for (const [from, to] of piecesOf(text)) {
    if (performance.now() > until) break;
    at = from;
    walk(Prism.tokenize(text.slice(from, to), grammar), null);
  }
  return marks;
}

function Code({text, language, leaf}) {
  return html`<figure class="code"><figcaption><span>${language || 'text'}</span><${Copy} text=${text} label="Copy"/></figcaption>
    <pre tabindex="0" role="region" aria-label=${`Code, ${language || 'text'}`}><code>${leaf(text, marksOf(text, language))}</code></pre></figure>`;
}

// ---- blocks ----
const TAGS = new Set(['p', 'h2', 'h3', 'h4', 'h5', 'h6', 'ul', 'ol', 'li', 'blockquote', 'strong', 'em', 's', 'thead', 'tbody', 'tr', 'th', 'td', 'hr']);

// The nodes of markdown-it's tokens, a flat list of openings and closings. `leaf(text, marks)` makes the nodes of a text.
function nodesOf(tokens, leaf) {
  const stack = [{kids: []}];
  const put = (...nodes) => stack.at(-1).kids.push(...nodes);
  for (const one of tokens) {
    const {type, tag, content, nesting} = one;
    if (nesting > 0) stack.push({token: one, kids: []});
    else if (nesting < 0) { const {token, kids} = stack.pop(); put(elementOf(token, kids)); }
    else if (type === 'inline') put(...nodesOf(one.children, leaf));
    else if (type === 'text' || type === 'text_special') { if (content) put(leaf(content)); }
    else if (type === 'softbreak' || type === 'hardbreak') put(html`<br/>`);
    else if (type === 'code_inline') put(html`<code>${leaf(content)}</code>`);
    else if (type === 'fence' || type === 'code_block') {
      put(html`<${Code} text=${content.replace(/\n$/, '')} language=${harmless(one.info?.trim().split(/\s/)[0] ?? '').toLowerCase()} leaf=${leaf}/>`);
    } else if (type === 'formula') put(html`<${Formula} text=${content} block=${one.meta.block}/>`);
    else if (type === 'image') put(linkOf(one.attrGet('src'), [`Image: ${harmless(one.content || 'without a name')}`])); // named, and never fetched
    else if (tag === 'hr') put(html`<hr/>`);
    else if (content) put(leaf(content));
  }
  return stack[0].kids;
}
function linkOf(url, kids) {
  if (!LINKS.test(url)) return html`<span>${kids}</span>`;
  return html`<a href=${url} target="_blank" rel="noopener noreferrer" title=${harmless(url)}>${kids}</a>`;
}
function elementOf(token, kids) {
  const {tag} = token;
  if (tag === 'a') return linkOf(token.attrGet('href'), kids);
  if (tag === 'table') return html`<div class="table" tabindex="0" role="region" aria-label="Table"><table>${kids}</table></div>`;
  if (tag === 'p' && token.hidden) return kids;
  if (tag === 'ol') return html`<ol start=${Number(token.attrGet('start') ?? 1)}>${kids}</ol>`;
  if (tag === 'th' || tag === 'td') {
    const side = /right|center/.exec(token.attrGet('style') ?? '')?.[0];
    return html`<${tag} class=${side} ...${tag === 'th' ? {scope: 'col'} : {}}>${kids}<//>`;
  }
  return html`<${!TAGS.has(tag) ? 'span' : tag === 's' ? 'del' : tag} class=${token.meta?.large ? 'large' : null}>${kids}<//>`;
}

// A text cut at the borders of its marks, and of tokens if they are shown: [{from, to, class, i}].
function cut(text, marks, ranges) {
  let next = 0; // the first mark that ends behind what was cut
  const pieces = (from, to) => {
    const found = [];
    while (marks[next]?.[1] <= from) next++;
    for (let k = next; marks[k]?.[0] < to; k++) {
      const [begin, end, kind] = marks[k];
      if (begin > from) found.push(harmless(text.slice(from, begin)));
      found.push(html`<span class=${`h-${kind}`}>${harmless(text.slice(Math.max(begin, from), Math.min(end, to)))}</span>`);
      from = end;
    }
    if (from < to) found.push(harmless(text.slice(from, to)));
    return found;
  };
  if (!ranges) return marks.length ? pieces(0, text.length) : harmless(text);
  return ranges.map(({from, to, ...rest}) => rest.i == null ? pieces(from, to)
    : html`<span class=${rest.class} data-i=${rest.i}>${pieces(from, to)}</span>`);
}

// Where the leaves of a rendered text stand in its source: each is looked for behind the one before it. `rangesOf(from, to)`
// gives the tokens there, or nothing.
function leafOf(source, from, rangesOf) {
  if (!rangesOf) return (text, marks = []) => cut(text, marks);
  let at = from;
  return (text, marks = []) => {
    const ranges = [];
    let start = 0;
    for (const line of text.split(/(?<=\n)/)) { // lines of code in a list lose their indentation
      const found = source.indexOf(line, at), hit = found >= 0 && found - at < 2000 + line.length;
      if (hit) for (const one of rangesOf(found, found + line.length)) ranges.push({...one, from: one.from - found + start, to: one.to - found + start});
      else ranges.push({from: start, to: start + line.length});
      if (hit) at = found + line.length;
      start += line.length;
    }
    return cut(text, marks, ranges);
  };
}

// The blocks of a text; those that are as they were keep their nodes, so that a stream draws its last block only.
export function Prose({text, rangesOf = null}) {
  const kept = useRef(new Map()), plain = useRef({}), {chosen} = rangesOf ?? {};
  if (!rangesOf && plain.current.text === text) return plain.current.blocks;
  if (text.length > PLAIN_CHARS) return html`<pre class="plain">${harmless(text)}</pre>`;
  const tokens = markdown.parse(text, {}), lines = [0], next = new Map(), blocks = [];
  for (let at = text.indexOf('\n'); at >= 0; at = text.indexOf('\n', at + 1)) lines.push(at + 1);
  for (let i = 0; i < tokens.length;) {
    let end = i, depth = 0, deepest = 0;
    do deepest = Math.max(deepest, depth += tokens[end++].nesting); while (depth > 0);
    const [first, last] = tokens[i].map ?? [0, 0], from = lines[first] ?? 0, to = lines[last] ?? text.length;
    const mark = chosen?.from < to && chosen?.to > from ? chosen.from : '', key = [blocks.length, !!rangesOf, mark, text.slice(from, to)].join(' ');
    const leaf = leafOf(text, from, rangesOf); // what is nested deeper than anybody reads stays as it was written
    const node = kept.current.get(key) ?? (deepest > DEPTH ? html`<pre class="plain">${leaf(text.slice(from, to))}</pre>` : nodesOf(tokens.slice(i, end), leaf));
    next.set(key, node);
    blocks.push(node);
    i = end;
  }
  kept.current = next;
  plain.current = rangesOf ? {} : {text, blocks};
  return blocks;
}
