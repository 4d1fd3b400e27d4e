// Forms for models that do not generate: embed, rerank, classify, detect, segment, read, transcribe.
import {html, useEffect, useRef, useState} from './vendor/preact.js';
import {post} from './api.js';
import {Bar, Tabs, percent} from './ui.js';
import {Choice, Input} from './forms.js';
import {record, toWav} from './sound.js';

const VERBS = {embed: 'Embed', rerank: 'Rerank', classify: 'Classify', detect: 'Detect', segment: 'Segment', read: 'Read',
  transcribe: 'Transcribe'};
const lines = text => text.split('\n').map(line => line.trim()).filter(Boolean);
const list = (items, show) => html`<ol>${items.map(item => html`<li>${show(item)}</li>`)}</ol>`;

export default function Tasks({models, model, refresh}) {
  const has = verb => one => one.verbs?.includes(verb);
  const verbs = Object.fromEntries(Object.entries(VERBS).filter(([verb]) => models.some(has(verb))));
  const [chosen, show] = useState(null), [names, name] = useState({}), verb = chosen in verbs ? chosen : Object.keys(verbs)[0];
  if (!verb) return html`<p>No model here does anything but generate; under Fetch there are others.</p>`;
  const able = models.filter(has(verb)), mine = able.find(each => each.name === names[verb]);
  const one = mine ?? able.find(each => !has('generate')(each)) ?? able[0];
  return html`<${Tabs} label="What to try" tabs=${verbs} current=${verb} onChange=${show}/>
    <${Choice} label="By" help=${!one.loaded && 'Not loaded yet: the first answer takes longer.'} value=${one.name}
      options=${able.map(each => each.name)} set=${value => name({...names, [verb]: value})}/>
    <${Form} key=${verb + one.name} model=${one} verb=${verb} refresh=${refresh}/>`;
}

// A verb's fields, as attributes of inputs; the answer to their values; and how it is shown.
const texts = value => ({name: 'texts', label: 'Texts', help: 'One a line', rows: 4, value});
const image = {name: 'file', label: 'Image', type: 'file', accept: 'image/*'};
const drawn = async (verb, model, {file, least}) => {
  const body = {model, image: await dataUrl(file), ...(least && {threshold: Number(least)})};
  const {data: [found], timings} = await post(`/stretto/${verb}`, body);
  return {file, found, timings};
};
const FORMS = {
  embed: [() => [texts('a cat\na kitten\na car')],
    async (model, {texts}) => ({input: lines(texts), ...await post('/v1/embeddings', {model, input: lines(texts)})}),
    ({input, data}) => html`<div class="scroll" tabindex="0" role="region" aria-label="Cosines"><table><tbody>
      ${data.map(({embedding}, i) => html`<tr><th scope="row">${i + 1}. ${input[i]}</th>
        ${data.map(other => html`<td class="num">${cosine(embedding, other.embedding).toFixed(3)}</td>`)}</tr>`)}</tbody></table></div>`],
  rerank: [() => [{name: 'query', label: 'Query', value: 'a pet'}, {...texts('a cat\na car\na parrot'), label: 'Documents'}],
    (model, {query, texts}) => post('/v1/rerank', {model, query, documents: lines(texts), return_documents: true}),
    ({results}) => list(results, one => html`${one.document.text} <small>${one.relevance_score.toFixed(4)}</small>`)],
  classify: [({kind = 'text'}) => [{name: 'kind', label: 'Input', value: kind, options: ['text', 'image', 'bytes']},
      kind === 'text' ? texts('') : {...image, label: 'File', accept: kind === 'image' ? 'image/*' : null}],
    async (model, {kind, texts, file}) => {
      const url = kind === 'text' ? '' : await dataUrl(file), data = url.slice(url.indexOf(',') + 1);
      const input = {text: {input: lines(texts ?? '')}, image: {image: url}, bytes: {data}}[kind];
      return {names: input.input ?? [file.name], ...await post('/stretto/classify', {model, ...input})};
    },
    ({names, data}) => data.map((one, i) => html`<h3>${names[i]}</h3><table class="parts"><tbody>
      ${one.labels.map(({name, score}) => html`<tr><th scope="row">${name}</th><td><${Bar} value=${score} label=${name}/></td>
        <td class="num">${percent(score)}</td></tr>`)}</tbody></table>`)],
  detect: [() => [image, {name: 'least', label: 'Least score', type: 'number', min: 0, max: 1, step: .05, required: false, value: ''}],
    drawn.bind(null, 'detect'),
    answer => html`<${Drawn} ...${answer} draw=${boxes}/>${list(answer.found.items, ({label, score, box}) => {
      const [x, y, right, bottom] = [box.x0, box.y0, box.x1, box.y1].map(Math.round);
      return html`${label} <small>${percent(score)}, ${right - x} × ${bottom - y} at ${x}, ${y}</small>`;
    })}`],
  segment: [() => [image], drawn.bind(null, 'segment'), answer => html`<${Drawn} ...${answer} draw=${cut}/>`],
  read: [() => [image], drawn.bind(null, 'read'),
    answer => html`<${Drawn} ...${answer}
        draw=${(brush, {lines}) => lines.forEach((line, i) => outline(brush, i + 1, line.corners))}/>
      ${list(answer.found.lines, line => html`${line.text} <small>${percent(line.score)}</small>`)}`],
  transcribe: [({file}) => [{name: 'file', label: 'Sound', help: file?.name ?? 'A WAV file, or what this browser can decode',
      type: 'file', accept: 'audio/*', required: false}],
    async (model, {file}) => {
      const body = new FormData();
      body.append('file', await toWav(file), 'sound.wav');
      body.append('model', model);
      body.append('response_format', 'verbose_json');
      return post('/v1/audio/transcriptions', body);
    },
    ({segments}) => list(segments, one => html`${one.text} <small>${one.start.toFixed(1)}–${one.end.toFixed(1)} s</small>`)],
};

function Form({model, verb, refresh}) {
  const [fields, work, show] = FORMS[verb], [values, set] = useState({kind: model.takes ?? 'text'}), [state, tell] = useState({});
  const shown = fields(values), all = {...Object.fromEntries(shown.map(({name, value}) => [name, value])), ...values};
  const submit = async event => {
    event.preventDefault();
    tell({busy: true});
    try { tell({answer: await work(model.name, all)}); } catch (error) { tell({error: error.message}); }
    refresh();
  };
  const change = name => value => set(before => ({...before, [name]: value}));
  return html`<form onSubmit=${submit}>${verb === 'transcribe' && html`<${Recorder} set=${change('file')}/>`}
      ${shown.map(({name, options, ...rest}) => options ? html`<${Choice} ...${rest} options=${options} set=${change(name)}/>`
        : html`<${Input} key=${name + rest.label} required ...${rest} ...${rest.type !== 'file' && {value: all[name]}} set=${change(name)}/>`)}
      <button class="primary" disabled=${state.busy}>${state.busy ? 'Working …' : VERBS[verb]}</button></form>
    <div role="status">${state.error && html`<p class="bad">${state.error}</p>`}
      ${state.answer && html`<p class="soft">${(1000 * (state.answer.timings?.total ?? 0)).toFixed(0)} ms</p>`}</div>
    ${state.answer && show(state.answer)}`;
}

const dataUrl = file => new Promise((resolve, reject) => {
  const reader = new FileReader();
  reader.onload = () => resolve(reader.result);
  reader.onerror = () => reject(new Error(`${file.name} cannot be read`));
  reader.readAsDataURL(file);
});

function cosine(a, b) {
  const dot = (one, two) => one.reduce((sum, value, i) => sum + value * two[i], 0);
  return dot(a, b) / Math.sqrt(dot(a, a) * dot(b, b) || 1);
}

// -- the answer, drawn onto the image --

function Drawn({file, found, draw}) {
  const canvas = useRef(), [error, fail] = useState(null);
  useEffect(() => {
    const {width, height} = found, brush = canvas.current.getContext('2d', {willReadFrequently: true});
    createImageBitmap(file).then(async image => {
      Object.assign(canvas.current, {width, height});
      brush.drawImage(image, 0, 0, width, height);
      await draw(brush, found);
      canvas.current.dataset.drawn = '';
    }).catch(() => fail('This browser cannot show the image.'));
  }, [found]);
  return html`<canvas ref=${canvas} class="drawn" role="img" aria-label=${`${file.name} with the result`}></canvas>
    ${error && html`<p class="bad">${error}</p>`}`;
}

function boxes(brush, {items}) {
  for (const {label, box: {x0, y0, x1, y1}} of items) outline(brush, label, [[x0, y0], [x1, y0], [x1, y1], [x0, y1]]);
}

function outline(brush, text, corners) {
  const size = Math.max(12, brush.canvas.width / 45), [x, y] = corners[0], top = Math.max(0, y - 1.3 * size);
  Object.assign(brush, {lineWidth: size / 6, font: `${size}px sans-serif`, strokeStyle: '#e4572e', fillStyle: '#1d2126'});
  brush.beginPath();
  for (const corner of corners) brush.lineTo(...corner);
  brush.closePath();
  brush.stroke();
  brush.fillRect(x, top, brush.measureText(text).width + .6 * size, 1.3 * size);
  brush.fillStyle = '#fff';
  brush.fillText(text, x + .3 * size, top + size);
}

async function cut(brush, {alpha, width, height}) { // the mask is a PNG in a data: URL, which the policy lets nobody fetch
  const file = new Blob([Uint8Array.from(atob(alpha.slice(alpha.indexOf(',') + 1)), sign => sign.charCodeAt(0))]);
  const mask = new OffscreenCanvas(width, height).getContext('2d'), seen = brush.getImageData(0, 0, width, height);
  mask.drawImage(await createImageBitmap(file), 0, 0);
  const shades = mask.getImageData(0, 0, width, height).data;
  for (let i = 0; i < shades.length; i += 4) seen.data[i + 3] = shades[i];
  brush.putImageData(seen, 0, 0);
}

function Recorder({set}) {
  const [running, run] = useState(null), [error, fail] = useState(null);
  useEffect(() => () => running?.stop(), [running]);
  const toggle = async () => {
    fail(null);
    try {
      if (!running) return run(await record());
      run(null);
      set(new File([await running.stop()], 'recording'));
    } catch (error) { fail(error.message); }
  };
  return html`<div class="row"><button type="button" onClick=${toggle}>${running ? 'Stop recording' : 'Record'}</button>
    <span role="status">${running ? 'recording …' : error}</span></div>`;
}
