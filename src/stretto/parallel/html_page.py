"""A lattice as one HTML file that can be explored: nothing else is needed, and nothing is fetched."""

from __future__ import annotations

import json
from typing import Any

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy"
      content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<title>Parallel tokens</title>
<style>
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif }
#sets { display: flex; overflow-x: auto; gap: .8rem; padding: 1rem 0; align-items: flex-start }
#sets div { display: flex; flex-direction: column; gap: .3rem }
button { font: inherit; white-space: pre; border: 1px solid #8888; border-radius: .3rem; background: none;
         color: inherit; padding: .1rem .5rem; text-align: left; cursor: pointer }
button small { opacity: .7; margin-left: .5rem }
.path { border: 2px solid #2a7; font-weight: 600 } .pruned { border-style: dashed; opacity: .6 }
.from { background: #47a4 } .to { background: #a724 } [aria-pressed=true] { outline: 2px solid }
</style></head><body>
<p>Tokens of one column share a position; the run's path is framed in green. Select a token: columns beside it
show how probable each of their tokens is before or after it.</p>
<p id="text"></p><div id="sets"></div>
<script type="application/json" id="data">DATA</script>
<script>
const data = JSON.parse(document.getElementById('data').textContent);
const sets = document.getElementById('sets');
const key = ([step, member]) => step + '.' + member;
const buttons = new Map();
const show = text => text.replace(/\\n/g, '↵').replace(/ /g, '␣');
const mark = (node, text) => { buttons.get(key(node)).querySelector('small').textContent = text };
const probability = edge => Math.exp(edge.logprob).toPrecision(2);
function select(node) {
  for (const n of data.nodes) {
    const id = [n.step, n.member], button = buttons.get(key(id));
    button.classList.remove('from', 'to');
    button.setAttribute('aria-pressed', key(id) === key(node));
    mark(id, n.probability.toPrecision(2));
  }
  for (const edge of data.edges) {
    const into = key(edge.to) === key(node), out = key(edge.from) === key(node);
    if (!into && !out) continue;
    const other = into ? edge.from : edge.to;
    buttons.get(key(other)).classList.add(into ? 'from' : 'to');
    mark(other, probability(edge));
  }
}
for (const n of data.nodes) {
  while (sets.children.length <= n.step) sets.append(document.createElement('div'));
  const button = document.createElement('button'), small = document.createElement('small');
  button.textContent = show(n.text); button.append(small);
  if (data.path[n.step] === n.member) button.classList.add('path');
  if (!n.kept) button.classList.add('pruned');
  button.onclick = () => select([n.step, n.member]);
  buttons.set(key([n.step, n.member]), button);
  sets.children[n.step].append(button);
  small.textContent = n.probability.toPrecision(2);
}
const chosen = data.nodes.filter(n => data.path[n.step] === n.member);
document.getElementById('text').textContent = chosen.map(n => n.text).join('');
</script></body></html>
"""


def as_html(lattice: dict[str, Any]) -> str:
    """The page of a lattice, given as `Lattice.to_dict` gives it; text of tokens is never read as HTML."""
    return _PAGE.replace("DATA", json.dumps(lattice, allow_nan=False).replace("<", "\\u003c"), 1)
