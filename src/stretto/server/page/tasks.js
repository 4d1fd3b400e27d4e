// Forms for models that do not generate: embed, rerank, classify, detect, segment, read, transcribe.
import {html, useEffect, useRef, useState} from './vendor/preact.js';
import {post} from './api.js';
import {Bar, Field, Tabs, percent} from './ui.js';
import {record, toWav} from './sound.js';

const VERBS = {embed: 'Embed', rerank: 'Rerank', classify: 'Classify', detect: 'Detect', segment: 'Segment', read: 'Read', transcribe: 'Transcribe'};
const KINDS = {text: 'A text', image: 'An image', bytes: 'A file'};
const FORMS = {embed: Embed, rerank: Rerank, classify: Classify, detect: Image, segment: Image, read: Image, transcribe: Transcribe};
const lines = text => text.split('\n').map(line => line.trim()).filter(Boolean);

export default function Tasks({models, model, refresh}) {
  const verbs = Object.fromEntries(Object.entries(VERBS).filter(([verb]) => models.some(one => one.verbs?.includes(verb))));
  const [chosen, show] = useState(null), [names, name] = useState({});
  const verb = chosen in verbs ? chosen : Object.keys(verbs)[0];
  if (!verb) return html`<p>No model here does anything but generate. Under Fetch there are some that see, hear and compare.</p>`;
  const able = models.filter(one => one.verbs?.includes(verb));
  const one = able.find(each => each.name === names[verb]) ?? able.find(each => each.name === model?.name) ?? able.find(each => !each.verbs.includes('generate')) ?? able[0];
  return html`<${Tabs} label="What to try" tabs=${verbs} current=${verb} onChange=${show}/>
    <${Field} label="By" help=${one.loaded ? null : 'Not loaded yet: the first answer takes longer.'}>${(id, by) => html`<select id=${id} aria-describedby=${by}
      value=${one.name} onChange=${event => name({...names, [verb]: event.target.value})}>${able.map(each => html`<option key=${each.name} value=${each.name}>${each.name}</option>`)}</select>`}<//>
    <${FORMS[verb]} key=${`${verb} ${one.name}`} model=${one} verb=${verb} refresh=${refresh}/>`;
}

// A form that sends and shows: `work` makes the answer, which is drawn by `children`.
function Ask({work, button, refresh, fields, children}) {
  const [state, set] = useState({});
  const submit = async event => {
    event.preventDefault();
    set({busy: true});
    try {
      const started = performance.now(), answer = await work();
      set({answer, seconds: answer.timings?.total ?? (performance.now() - started) / 1000});
    } catch (error) { set({error: error.message}); }
    refresh();
  };
  return html`<form onSubmit=${submit}>${fields}<button class="primary" disabled=${state.busy}>${state.busy ? 'Working …' : button}</button></form>
    <div role="status">${state.error && html`<p class="bad">${state.error}</p>`}${state.answer && html`<p class="soft">${(1000 * state.seconds).toFixed(0)} ms</p>`}</div>
    ${state.answer && (Array.isArray(children) ? children[0] : children)(state.answer)}`;
}

function Lines({label, help, value, onChange}) {
  return html`<${Field} label=${label} help=${help}>${(id, by) => html`<textarea id=${id} aria-describedby=${by} rows="4" required value=${value}
    onInput=${event => onChange(event.target.value)}></textarea>`}<//>`;
}

function Pick({label, help, accept, onChange}) { // a file; `onChange` gets null when it is taken back
  return html`<${Field} label=${label} help=${help}>${(id, by) => html`<input id=${id} aria-describedby=${by} type="file" accept=${accept} required
    onChange=${event => onChange(event.target.files[0] ?? null)}/>`}<//>`;
}

const dataUrl = file => new Promise((resolve, reject) => {
  const reader = new FileReader();
  reader.onload = () => resolve(reader.result);
  reader.onerror = () => reject(new Error(`${file.name} cannot be read`));
  reader.readAsDataURL(file);
});

function Embed({model, refresh}) {
  const [text, set] = useState('a cat\na kitten\na car');
  const work = async () => {
    const input = lines(text), {data, timings} = await post('/v1/embeddings', {model: model.name, input});
    return {input, timings, vectors: data.map(one => one.embedding)};
  };
  return html`<${Ask} work=${work} button="Embed" refresh=${refresh} fields=${html`<${Lines} label="Texts" help="One a line" value=${text} onChange=${set}/>`}>
    ${({input, vectors}) => html`<p>${vectors[0].length} numbers each; cosines:</p><div class="scroll" tabindex="0" role="region" aria-label="Cosines"><table>
      <thead><tr><td></td>${input.map((_, i) => html`<th scope="col" class="num">${i + 1}</th>`)}</tr></thead>
      <tbody>${input.map((line, i) => html`<tr><th scope="row">${i + 1}. ${line}</th>${vectors.map(other => html`<td class="num">${cosine(vectors[i], other).toFixed(3)}</td>`)}</tr>`)}</tbody></table></div>`}<//>`;
}

function cosine(a, b) {
  let dot = 0, one = 0, two = 0;
  for (let i = 0; i < a.length; i++) { dot += a[i] * b[i]; one += a[i] ** 2; two += b[i] ** 2; }
  return dot / Math.sqrt(one * two || 1);
}

function Rerank({model, refresh}) {
  const [query, ask] = useState('a pet'), [text, set] = useState('a cat\na car\na parrot');
  const work = async () => { const documents = lines(text); return {documents, ...await post('/v1/rerank', {model: model.name, query, documents})}; };
  return html`<${Ask} work=${work} button="Rerank" refresh=${refresh} fields=${html`
    <${Field} label="Query">${id => html`<input id=${id} required value=${query} onInput=${event => ask(event.target.value)}/>`}<//>
    <${Lines} label="Documents" help="One a line" value=${text} onChange=${set}/>`}>
    ${({documents, results}) => html`<ol>${results.map(one => html`<li>${documents[one.index]} <small class="num">${one.relevance_score.toFixed(4)}</small></li>`)}</ol>`}<//>`;
}

function Classify({model, refresh}) {
  const [kind, choose] = useState(model.takes in KINDS ? model.takes : 'text'), [text, set] = useState(''), [file, take] = useState(null);
  const work = async () => {
    const url = kind === 'text' ? null : await dataUrl(file);
    const input = {text: () => ({input: lines(text)}), image: () => ({image: url}), bytes: () => ({data: url.slice(url.indexOf(',') + 1)})}[kind]();
    return {names: kind === 'text' ? lines(text) : [file.name], ...await post('/stretto/classify', {model: model.name, ...input})};
  };
  return html`<${Ask} work=${work} button="Classify" refresh=${refresh} fields=${html`
    <${Field} label="Input">${id => html`<select id=${id} value=${kind} onChange=${event => { choose(event.target.value); take(null); }}>
      ${Object.entries(KINDS).map(([id, name]) => html`<option key=${id} value=${id}>${name}</option>`)}</select>`}<//>
    ${kind === 'text' ? html`<${Lines} label="Texts" help="One a line" value=${text} onChange=${set}/>`
      : html`<${Pick} key=${kind} label="File" accept=${kind === 'image' ? 'image/*' : null} onChange=${take}/>`}`}>
    ${({names, data}) => data.map((one, i) => html`<h3>${names[i]}</h3><table class="parts"><tbody>${one.labels.map(label => html`<tr><th scope="row">${label.name}</th>
      <td><${Bar} value=${label.score} label=${label.name}/></td><td class="num">${percent(label.score)}</td></tr>`)}</tbody></table>`)}<//>`;
}

// -- images: the answer is drawn onto them --

const DRAW = {
  detect(brush, {items}) {
    for (const {label, box} of items) outline(brush, label, [[box.x0, box.y0], [box.x1, box.y0], [box.x1, box.y1], [box.x0, box.y1]]);
  },
  read(brush, {lines}) { lines.forEach((line, i) => outline(brush, String(i + 1), line.corners)); },
  async segment(brush, {alpha}) {
    const {width, height} = brush.canvas, mask = new OffscreenCanvas(width, height).getContext('2d'), seen = brush.getImageData(0, 0, width, height);
    mask.drawImage(await createImageBitmap(await pixels(alpha)), 0, 0, width, height);
    const shades = mask.getImageData(0, 0, width, height).data;
    for (let i = 0; i < shades.length; i += 4) seen.data[i + 3] = shades[i];
    brush.putImageData(seen, 0, 0);
  },
};
const TELL = {
  detect: ({items}) => items.length ? html`<ol>${items.map(({label, score, box}) => html`<li>${label} <small>${percent(score)}, ${Math.round(box.x1 - box.x0)} × ${
    Math.round(box.y1 - box.y0)} at ${Math.round(box.x0)}, ${Math.round(box.y0)}</small></li>`)}</ol>` : html`<p>Nothing was found.</p>`,
  read: ({lines}) => html`<ol>${lines.map(line => html`<li>${line.text} <small>${percent(line.score)}</small></li>`)}</ol>`,
  segment: () => null,
};

async function pixels(url) { // of a data: URL; the policy has no fetch for them
  const text = atob(url.slice(url.indexOf(',') + 1));
  return new Blob([Uint8Array.from(text, sign => sign.charCodeAt(0))], {type: 'image/png'});
}

function outline(brush, text, corners) {
  const size = Math.max(12, brush.canvas.width / 45);
  brush.lineWidth = Math.max(2, brush.canvas.width / 300);
  brush.font = `${size}px sans-serif`;
  brush.strokeStyle = '#e4572e';
  brush.beginPath();
  corners.forEach(([x, y], i) => i ? brush.lineTo(x, y) : brush.moveTo(x, y));
  brush.closePath();
  brush.stroke();
  const [x, y] = corners[0], top = Math.max(0, y - 1.3 * size);
  brush.fillStyle = '#1d2126';
  brush.fillRect(x, top, brush.measureText(text).width + .6 * size, 1.3 * size);
  brush.fillStyle = '#fff';
  brush.fillText(text, x + .3 * size, top + size);
}

function Image({model, verb, refresh}) {
  const [file, take] = useState(null), [least, set] = useState('');
  const work = async () => {
    const body = {model: model.name, image: await dataUrl(file), ...(verb === 'detect' && least !== '' && {threshold: Number(least)})};
    const {data: [found], timings} = await post(`/stretto/${verb}`, body);
    return {file, found, timings};
  };
  return html`<${Ask} work=${work} button=${VERBS[verb]} refresh=${refresh} fields=${html`<${Pick} label="Image" accept="image/*" onChange=${take}/>
    ${verb === 'detect' && html`<${Field} label="Least score" help="The model’s own, if left empty">${(id, by) => html`<input id=${id} aria-describedby=${by} type="number"
      min="0" max="1" step="0.05" value=${least} onInput=${event => set(event.target.value)}/>`}<//>`}`}>
    ${answer => html`<${Drawn} ...${answer} verb=${verb}/>${TELL[verb](answer.found)}`}<//>`;
}

function Drawn({file, found, verb}) {
  const canvas = useRef(), [error, fail] = useState(null);
  useEffect(() => {
    const draw = async () => {
      const image = await createImageBitmap(file), brush = canvas.current.getContext('2d', {willReadFrequently: verb === 'segment'});
      Object.assign(canvas.current, {width: found.width, height: found.height});
      brush.drawImage(image, 0, 0, found.width, found.height);
      await DRAW[verb](brush, found);
      canvas.current.dataset.drawn = verb;
    };
    draw().catch(() => fail('This browser cannot show the image.'));
  }, [file, found]);
  return html`<canvas ref=${canvas} class="drawn" role="img" aria-label=${`${file.name} with the result drawn onto it`}></canvas>${error && html`<p class="bad">${error}</p>`}`;
}

// -- sound --

function Transcribe({model, refresh}) {
  const [sound, take] = useState(null), [recording, set] = useState(null), [error, fail] = useState(null);
  useEffect(() => () => recording?.cancel(), [recording]);
  const toggle = async () => {
    fail(null);
    try {
      if (!recording) { set(await record()); return; }
      set(null);
      take(new File([await recording.stop()], 'recording'));
    } catch (error) { set(null); fail(error.message); }
  };
  const work = async () => {
    const form = new FormData();
    form.append('file', await toWav(sound), 'sound.wav');
    form.append('model', model.name);
    form.append('response_format', 'verbose_json');
    return post('/v1/audio/transcriptions', form);
  };
  return html`<div class="row"><button type="button" aria-pressed=${!!recording} onClick=${toggle}>${recording ? 'Stop recording' : 'Record'}</button>
      <span role="status">${recording ? 'recording …' : sound ? `${sound.name}, ${Math.ceil(sound.size / 1000)} kB` : ''}</span></div>
    ${error && html`<p class="bad" role="alert">${error}</p>`}
    <${Field} label="Or a file" help="WAV, or what this browser can decode">${(id, by) => html`<input id=${id} aria-describedby=${by} type="file" accept="audio/*"
      onChange=${event => take(event.target.files[0] ?? null)}/>`}<//>
    <${Ask} work=${work} button="Transcribe" refresh=${refresh} fields=${!sound && html`<p class="soft">Record something, or choose a file.</p>`}>
      ${({segments, duration}) => html`<p class="soft">${duration.toFixed(1)} s of sound</p><ol>${segments.map(one => html`<li>${one.text} <small>${one.start.toFixed(1)}–${one.end.toFixed(1)} s</small></li>`)}</ol>`}<//>`;
}
