// Small parts that several views use. Text of models and files is only ever a text node.
import {html, createContext, useContext, useEffect, useRef, useState} from './vendor/preact.js';
import {Act} from './icons.js';
import {live} from './live.js';

export const percent = p => `${(100 * p).toFixed(p >= .0995 ? 0 : p >= .00095 ? 1 : 2)} %`;
export const grade = p => p > .9 ? 'p0' : p > .5 ? 'p1' : p > .15 ? 'p2' : 'p3';
export const bytes = n => n >= 1e9 ? `${(n / 1e9).toFixed(2)} GB` : n >= 1e6 ? `${(n / 1e6).toFixed(1)} MB` : `${Math.ceil(n / 1e3)} kB`;
export const number = n => Math.round(n).toLocaleString('en');
// Where a prompt leaves the nearest cached one; the text around that place is its own.
export const differs = at => at && `differs from a cached prompt at token ${number(at.token)} of ${number(at.of)}${
  at.after ? `: “${visible(at.before)}▸${visible(at.after)}”` : ''}`;
// Spaces, line breaks and control characters of a token as signs.
export const visible = text => text.replace(/\n/g, '⏎').replace(/ /g, '␣').replace(/\t/g, '⇥')
  .replace(/[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u202a-\u202e\u2066-\u206f\ufeff\u{e0000}-\u{e007f}]/gu, '�') || '∅';

export const Model = createContext(null);
export const useModel = () => useContext(Model);

export function useLive() {
  const [, again] = useState(0);
  useEffect(() => live.subscribe(() => again(n => n + 1)), []);
  return live.state;
}

let serial = 0;
export function useId() {
  const id = useRef(null);
  return id.current ??= `f${++serial}`;
}

// A labelled control: <${Field} label="…" help="…" error="…">${id => html`<input id=${id} …/>`}<//>
// An error is said aloud, but for one that changes while somebody types: the control is marked and described by it.
export function Field({label, help, error, typed, children, inline}) {
  const id = useId(), control = Array.isArray(children) ? children[0] : children;
  const described = [help && `${id}-help`, error && `${id}-error`].filter(Boolean).join(' ') || undefined;
  return html`<div class=${inline ? 'field inline' : 'field'}><label for=${id}>${label}</label>${control(id, described)}
    ${help && html`<small id=${`${id}-help`}>${help}</small>`}
    ${error && html`<small class="bad" role=${typed ? null : 'alert'} id=${`${id}-error`}>${error}</small>`}</div>`;
}

export function Bar({value, max = 1, label}) {
  return html`<meter min="0" max=${max} value=${Math.min(max, value)} aria-label=${label}></meter>`;
}

// Tabs by ARIA's pattern: arrow keys move, one tab stop. `tabs` is {id: name}.
export function Tabs({label, tabs, current, onChange}) {
  const ids = Object.keys(tabs);
  const move = event => {
    const step = {ArrowLeft: -1, ArrowRight: 1}[event.key];
    if (!step) return;
    const list = event.currentTarget;
    event.preventDefault();
    onChange(ids[(ids.indexOf(current) + step + ids.length) % ids.length]);
    requestAnimationFrame(() => list.querySelector('[aria-selected=true]')?.focus());
  };
  return html`<div class="tabs" role="tablist" aria-label=${label} onKeyDown=${move}>${ids.map(id => html`
    <button type="button" role="tab" key=${id} aria-selected=${id === current} tabindex=${id === current ? 0 : -1}
      onClick=${() => onChange(id)}>${tabs[id]}</button>`)}</div>`;
}

// Whether a text is on the clipboard now.
export async function copyText(text) {
  return await navigator.clipboard?.writeText(text).then(() => true, () => false) || copyByHand(text);
}

export function Copy({text, label = 'Copy'}) {
  const [done, set] = useState('');
  const copy = async () => {
    set(await copyText(typeof text === 'function' ? text() : text) ? 'Copied' : 'Not allowed here');
    setTimeout(() => set(''), 2000);
  };
  return html`<button type="button" onClick=${copy}>${done || label}</button>`;
}

function copyByHand(text) { // where the page has come without TLS, browsers have no clipboard object
  const area = document.createElement('textarea'), before = document.activeElement;
  area.value = text;
  document.body.append(area);
  area.select();
  const copied = document.execCommand('copy');
  area.remove();
  before?.focus();
  return copied;
}

const THEMES = ['auto', 'light', 'dark'], themed = () => localStorage.getItem('stretto.theme') ?? 'auto';
const paint = theme => { document.documentElement.dataset.theme = theme; };
paint(themed());
export function Theme() {
  const [theme, set] = useState(themed());
  const next = () => {
    const to = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    localStorage.setItem('stretto.theme', to);
    paint(to);
    set(to);
  };
  return html`<${Act} icon="theme" label=${`Colours: ${theme}`} onClick=${next}/>`;
}
