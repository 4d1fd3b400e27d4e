// The options of a request as a form: names, help, defaults; and from what was typed to fields of a body.
import {html} from './vendor/preact.js';
import {Field} from './ui.js';

const number = (help, fallback, more) => ({kind: 'number', help, fallback, step: 'any', ...more});
const integer = (help, fallback, more) => ({kind: 'number', help, fallback, step: 1, ...more});
const EFFORTS = ['none', 'minimal', 'low', 'medium', 'high', 'xhigh'];
export const OPTIONS = {
  max_tokens: integer('At most so many tokens.', 256, {min: 1}),
  temperature: number('How freely tokens are drawn; 0 takes the most probable one.', 0.8, {min: 0, max: 100, step: 0.05}),
  top_k: integer('Only the k most probable; 0: all.', 40, {min: 0}),
  top_p: number('Only the most probable ones that make up this share.', 0.95, {min: 0, max: 1, step: 0.01}),
  min_p: number("Only those with this share of the best one's probability.", 0.05, {min: 0, max: 1, step: 0.01}),
  repetition_penalty: number('Above 1: tokens that were there already are less probable.', 1, {min: 0, max: 100, step: 0.05}),
  presence_penalty: number('Taken from the logits of tokens that have come.', 0, {min: -100, max: 100, step: 0.1}),
  frequency_penalty: number('The same, for each time that they have come.', 0, {min: -100, max: 100, step: 0.1}),
  seed: integer('The same seed gives the same text again.', 'a new one'),
  n: integer('So many texts of one prompt.', 1, {min: 1, max: 16}),
  stop: {kind: 'lines', help: 'Texts that end the answer, one a line.', fallback: 'none'},
  stop_tokens: {kind: 'json', help: 'Ids of tokens that end it, as [1, 2].', fallback: 'none'},
  logit_bias: {kind: 'json', help: 'Added to logits, by token id, as {"42": -100}.', fallback: 'none'},
  ignore_eos: {kind: 'switch', help: "Go on behind the model's end tokens."},
  timeout: number('Seconds; then the text so far is the answer.', 'none', {min: 0}),
  reasoning_effort: {kind: 'choice', help: "How much to think, by the model's own switch.", values: EFFORTS, chat: true},
  chat_template_kwargs: {kind: 'json', help: 'For the chat template, as {"enable_thinking": false}.', fallback: 'none', chat: true},
  cache_pin: {kind: 'text', help: 'A name: the prompt stays in the prefix cache.', fallback: 'none'},
};
const SHAPES = {
  none: 'any text', schema: 'JSON by a schema', object: 'any JSON object', regex: 'a regular expression', lark: 'a Lark grammar',
  choices: 'one of these lines',
};
const CHOICES = {'': 'may call them', required: 'has to call one', none: 'does not see them'};
const SCHEMA = '{"type": "object", "properties": {"name": {"type": "string", "maxLength": 20}}}';
const FUNCTIONS = '[{"name": "weather", "parameters": {"type": "object", "properties": {"town": {"type": "string"}}}}]';

export class FieldError extends Error {
  constructor(param, message) { super(message); this.param = param; }
}

function parsed(param, text) {
  try { return JSON.parse(text); } catch (error) { throw new FieldError(param, `This is no JSON: ${error.message}`); }
}

// The fields of a body; a FieldError names the control with a mistake.
export function fields(values, chat) {
  const body = {max_tokens: OPTIONS.max_tokens.fallback};
  for (const [name, option] of Object.entries(OPTIONS)) {
    const value = values[name];
    if (value == null || value === '' || value === false || (option.chat && !chat)) continue;
    if (option.kind === 'number') body[name] = Number(value);
    else if (option.kind === 'lines') body[name] = value.split('\n').filter(line => line);
    else if (option.kind === 'json') body[name] = parsed(name, value);
    else body[name] = value;
    if (Number.isNaN(body[name])) throw new FieldError(name, 'This is no number.');
  }
  const {shape = 'none', grammar = '', tools = ''} = values;
  const schema = shape === 'schema' ? parsed('grammar', grammar) : {type: 'object'};
  if (shape === 'schema' && chat) body.response_format = {type: 'json_schema', json_schema: {name: 'answer', schema}};
  else if (shape === 'schema' || shape === 'object') body.grammar = {type: 'json', schema};
  else if (shape === 'regex') body.grammar = {type: 'regex', pattern: grammar};
  else if (shape === 'lark') body.grammar = {type: 'lark', grammar};
  else if (shape === 'choices') body.grammar = {type: 'choices', choices: grammar.split('\n').filter(line => line)};
  if (chat && tools.trim()) {
    const list = parsed('tools', tools);
    body.tools = (Array.isArray(list) ? list : [list]).map(tool => tool?.function ? tool : {type: 'function', function: tool});
    if (values.tool_choice) body.tool_choice = values.tool_choice;
  }
  return body;
}

// Which control a field of the server's answer belongs to: messages[0].content -> null, grammar.pattern -> grammar.
export function controlOf(param) {
  const name = (param ?? '').split(/[.[]/)[0];
  if (name === 'response_format') return 'grammar';
  return name in OPTIONS || ['grammar', 'tools', 'tool_choice'].includes(name) ? name : null;
}

function Control({name, option, id, described, value, set}) {
  const {kind, min, max, step, fallback = ''} = option;
  const all = {id, 'aria-describedby': described, value: value ?? '', onInput: event => set(name, event.target.value)};
  if (kind === 'switch') {
    return html`<input type="checkbox" id=${id} aria-describedby=${described} checked=${!!value}
      onChange=${event => set(name, event.target.checked)}/>`;
  }
  if (kind === 'choice') {
    return html`<select ...${all}><option value="">as the model has it</option>
      ${option.values.map(one => html`<option key=${one} value=${one}>${one}</option>`)}</select>`;
  }
  if (kind === 'lines') return html`<textarea ...${all} rows="2" placeholder=${fallback}></textarea>`;
  const more = kind === 'number' ? {type: 'number', min, max, step: step === 1 ? 1 : 'any', inputmode: 'decimal'} : {type: 'text'};
  return html`<input ...${all} ...${more} placeholder=${String(fallback)}/>`;
}

export function OptionForm({values, set, chat, error}) {
  const {shape = 'none'} = values, opened = open => open ? true : undefined;
  const wrong = name => error?.param === name ? error.message : null;
  const text = (name, label, help, placeholder) => html`
    <${Field} label=${label} help=${help} error=${wrong(name)}>${(id, described) => html`
      <textarea id=${id} rows="5" spellcheck=${false} aria-describedby=${described} placeholder=${placeholder}
        value=${values[name] ?? ''} onInput=${event => set(name, event.target.value)}></textarea>`}<//>`;
  const choice = (name, label, value, options) => html`<${Field} label=${label} error=${wrong(name)}>${id => html`
    <select id=${id} value=${value} onChange=${event => set(name, event.target.value)}>
      ${Object.entries(options).map(([one, shown]) => html`<option key=${one} value=${one}>${shown}</option>`)}</select>`}<//>`;
  const listed = Object.entries(OPTIONS).filter(([, option]) => chat || !option.chat);
  return html`<details open=${opened(error?.param in OPTIONS)}><summary>Options</summary>
      <div class="fields">${listed.map(([name, option]) => html`
        <${Field} key=${name} label=${name} help=${option.help} error=${wrong(name)}>${(id, described) => html`
        <${Control} ...${{name, option, id, described, set}} value=${values[name]}/>`}<//>`)}</div></details>
    <details open=${opened(error?.param === 'grammar')}><summary>Shape of the answer</summary>
      ${choice('shape', 'The answer is', shape, SHAPES)}
      ${shape !== 'none' && shape !== 'object'
        && text('grammar', SHAPES[shape], 'Token by token, nothing else can come.', shape === 'schema' ? SCHEMA : '')}</details>
    ${chat && html`<details open=${opened(error?.param?.startsWith('tool'))}><summary>Tools</summary>
      ${text('tools', 'Functions', 'A list of functions with name, description and parameters (a JSON schema).', FUNCTIONS)}
      ${choice('tool_choice', 'The model', values.tool_choice ?? '', CHOICES)}</details>`}`;
}
