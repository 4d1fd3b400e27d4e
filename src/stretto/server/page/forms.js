// Labelled inputs and choices, for forms that are made of nothing else. `set` gets the text, the file or the tick.
import {html} from './vendor/preact.js';
import {Field} from './ui.js';

const given = ({target}) => target.type === 'checkbox' ? target.checked : target.type === 'file' ? target.files[0] ?? null : target.value;

export const Input = ({label, help, error, inline, set, ...rest}) => html`<${Field} ...${{label, help, error, inline}}>${(id, by) => {
  const props = {...rest, id, 'aria-describedby': by, onInput: event => set(given(event))};
  return rest.rows ? html`<textarea ...${props}></textarea>` : html`<input ...${props}/>`;
}}<//>`;

// `options` are [value, name] pairs, or names that are the values.
export const Choice = ({label, help, inline, set, value, options}) => html`<${Field} ...${{label, help, inline}}>${(id, by) => html`
  <select id=${id} aria-describedby=${by} value=${value} onInput=${event => set(given(event))}>
    ${options.map(one => [one].flat()).map(([id, name = id]) => html`<option key=${id} value=${id}>${name}</option>`)}</select>`}<//>`;
