// Replicas: all of them and their sum, where this server is one of several (docs/how-to/replicas.md).
import {html, useEffect, useState} from './vendor/preact.js';
import {get} from './api.js';
import {number, useLive} from './ui.js';

export default function Replicas() {
  const {hello, stats} = useLive(), [found, set] = useState(null);
  useEffect(() => { if (hello?.replica) get('/stretto/replicas').then(set, () => {}); }, [stats?.time >> 1]);
  if (!found) return null;
  return html`<section class="wide"><h2>Replicas</h2><ul class="cards">${Object.entries(found.sums).map(([name, one]) => html`
    <li key=${name}><b>${name}</b> ${one.running} running, ${one.waiting} waiting · ${number(one.held)} of ${
      number(one.cells)} cells held</li>`)}</ul></section>`;
}
