// The options of a request as a form: names, help, defaults; and from what was typed to fields of a body.
import {html, useRef} from './vendor/preact.js';
import {Field} from './ui.js';

const number = (help, fallback, more) => ({kind: 'number', help, fallback, step: 'any', ...more});
const integer = (help, fallback, more) => ({kind: 'number', help, fallback, step: 1, ...more});
const EFFORTS = ['none', 'minimal', 'low', 'medium', 'high', 'xhigh'];
export const OPTIONS = {
  max_tokens: integer('The most tokens to generate.', 256, {min: 1}),
  temperature: number('Randomness of sampling; 0 is greedy.', 0.8, {min: 0, max: 100, step: 0.05}),
  top_k: integer('Sample from the k most probable tokens; 0: all.', 40, {min: 0}),
  top_p: number('Sample from the most probable tokens that have this probability together.', 0.95, {min: 0, max: 1, step: 0.01}),
  min_p: number("Least probability, as a share of the best token's.", 0.05, {min: 0, max: 1, step: 0.01}),
  repetition_penalty: number('Above 1, tokens of the text so far become less probable.', 1, {min: 0, max: 100, step: 0.05}),
  presence_penalty: number('Subtracted from logits of tokens that were generated.', 0, {min: -100, max: 100, step: 0.1}),
  frequency_penalty: number('The same, once per occurrence.', 0, {min: -100, max: 100, step: 0.1}),
  seed: integer('The same seed gives the same text again.', 'random'),
  n: integer('Texts per prompt.', 1, {min: 1, max: 16}),
  stop: {kind: 'lines', help: 'Texts that end generation, one a line.', fallback: 'none'},
  stop_tokens: {kind: 'json', help: 'Token ids that end generation, as [1, 2].', fallback: 'none'},
  logit_bias: {kind: 'json', help: 'Added to logits, by token id, as {"42": -100}.', fallback: 'none'},
  ignore_eos: {kind: 'switch', help: 'Continue past end tokens.'},
  timeout: number('Seconds, after which generation ends.', 'none', {min: 0}),
  reasoning_effort: {kind: 'choice', help: 'How much to reason, for models with a switch for it.', values: EFFORTS, chat: true},
  chat_template_kwargs: {kind: 'json', help: 'For the chat template, as {"enable_thinking": false}.', fallback: 'none', chat: true},
  cache_pin: {kind: 'text', help: 'Pins the prompt in the prefix cache under this name.', fallback: 'none'},
};
const SHAPES = {
  none: 'any text', schema: 'JSON by a schema', object: 'any JSON object', regex: 'a regular expression', lark: 'a Lark grammar',
  choices: 'one of these lines',
};
const CHOICES = {'': 'auto', required: 'required', none: 'none'};
const SCHEMA = '{"type": "object", "properties": {"name": {"type": "string", "maxLength": 20}}}';
const FUNCTIONS = '[{"name": "weather", "parameters": {"type": "object", "properties": {"town": {"type": "string"}}}}]';

export class FieldError extends Error {
  constructor(param, message) { super(message); this.param = param; }
}

// What keeps a text from being JSON: the place of the first mistake, and what to do about it.
const WORDS = {True: 'true', False: 'false', None: 'null', undefined: 'null', NaN: 'null'};
function mistakeIn(text) {
  let at = 0;
  const take = (pattern, match = new RegExp(pattern, 'y')) => { match.lastIndex = at; const found = match.exec(text)?.[0]; at += found?.length ?? 0; return found; };
  const fail = say => { throw Object.assign(new Error(say), {at}); };
  const space = () => { take('[ \\t\\r\\n]*'); if (/^(\/[/*]|#)/.test(text.slice(at, at + 2))) fail('JSON has no comments; take it out'); };
  const string = () => {
    take('"(?:[^"\\\\\u0000-\u001f]|\\\\(?:["\\\\/bfnrt]|u[0-9a-fA-F]{4}))*');
    if (take('"')) return;
    fail(text[at] === '\\' ? 'a backslash is written twice: \\\\' : at < text.length && text[at] !== '\n' ? 'write this character as \\u and four digits'
      : 'the closing " of this text is missing');
  };
  const rest = (close, one) => {
    const isOpen = () => { space(); if (at >= text.length) fail(`the closing ${close} is missing`); return !take(`\\${close}`); };
    for (let n = 0; isOpen(); n++) {
      const comma = at;
      if (n && !take(',')) fail(`a comma or ${close} is missing here`);
      space();
      if (n && text[at] === close) { at = comma; fail(`take out the comma before ${close}`); }
      one();
    }
  };
  const member = () => {
    if (text[at] !== '"') fail(text[at] === "'" ? 'names stand in double quotes, as "name"' : 'a name in double quotes is missing here');
    string();
    space();
    if (!take(':')) fail('a colon is missing behind the name');
    value();
  };
  function value() {
    space();
    if (take('\\{')) return rest('}', member);
    if (take('\\[')) return rest(']', value);
    if (text[at] === '"') return string();
    if (text[at] === "'") fail('texts stand in double quotes, as "text"');
    const from = at, word = take('[A-Za-z_][A-Za-z_0-9]*') ?? take('-?(?:0|[1-9][0-9]*)(?:\\.[0-9]+)?(?:[eE][-+]?[0-9]+)?(?![0-9.])');
    if (word == null && /[-+.0-9]/.test(text[at] ?? '')) fail('a number is written as 12, -0.5 or 1e3');
    if (word == null) fail(at < text.length ? 'a value is missing here: a text, a number, a list or an object' : 'it ends before the value');
    if (/^[-0-9]|^(true|false|null)$/.test(word)) return;
    at = from;
    fail(Object.hasOwn(WORDS, word) ? `write ${WORDS[word]}` : `write "${word}", in double quotes`);
  }
  try {
    value();
    space();
    if (at < text.length) fail('nothing may follow the value; take it out');
  } catch (error) {
    if (error.at == null) return 'It is nested too deep.';
    const lines = text.slice(0, error.at).split('\n');
    return `Line ${lines.length}, column ${lines.at(-1).length + 1}: ${error.message}`;
  }
  return 'This is no JSON.';
}

// What JSON of each field has to be; a text says what it is not.
const isObject = value => !!value && typeof value === 'object' && !Array.isArray(value), toolsOf = list => Array.isArray(list) ? list : [list];
const FITS = {
  grammar: value => isObject(value) || 'A schema is an object, as {"type": "object"}.',
  stop_tokens: value => (Array.isArray(value) && value.every(Number.isInteger)) || 'This is a list of whole numbers, as [1, 2].',
  logit_bias: value => (isObject(value) && Object.values(value).every(Number.isFinite)) || 'This is an object of numbers, as {"42": -100}.',
  chat_template_kwargs: value => isObject(value) || 'This is an object, as {"enable_thinking": false}.',
  tools: value => {
    const at = toolsOf(value).findIndex(one => typeof (one?.function ?? one)?.name !== 'string');
    return at < 0 || `Function ${at + 1} has no "name"; give it one, as {"name": "weather"}.`;
  },
};
function parsed(param, text) {
  let value;
  try { value = JSON.parse(text); } catch { throw new FieldError(param, mistakeIn(text)); }
  const fits = FITS[param](value);
  if (fits !== true) throw new FieldError(param, fits);
  return value;
}

// What is wrong in a form, by its controls; a field that is still empty is not wrong, but for a schema.
export function mistakes(values, chat) {
  const found = {}, look = (name, text) => { try { parsed(name, text); } catch (error) { found[name] = error.message; } };
  for (const [name, {kind, chat: only}] of Object.entries(OPTIONS)) if (kind === 'json' && values[name] && (chat || !only)) look(name, values[name]);
  if (values.shape === 'schema') look('grammar', values.grammar ?? '');
  if (chat && values.tools?.trim()) look('tools', values.tools);
  return found;
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
    body.tools = toolsOf(list).map(tool => tool?.function ? tool : {type: 'function', function: tool});
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

const groupOf = param => param in OPTIONS ? 'options' : param?.startsWith('tool') ? 'tools' : param;

function Control({name, option, id, described, value, set, invalid}) {
  const {kind, min, max, step, fallback = ''} = option;
  const all = {id, 'aria-describedby': described, 'aria-invalid': invalid, value: value ?? '', onInput: event => set(name, event.target.value)};
  if (kind === 'switch') {
    return html`<input type="checkbox" id=${id} aria-describedby=${described} checked=${!!value}
      onChange=${event => set(name, event.target.checked)}/>`;
  }
  if (kind === 'choice') {
    return html`<select ...${all}><option value="">default</option>
      ${option.values.map(one => html`<option key=${one} value=${one}>${one}</option>`)}</select>`;
  }
  if (kind === 'lines') return html`<textarea ...${all} rows="2" placeholder=${fallback}></textarea>`;
  const more = kind === 'number' ? {type: 'number', min, max, step: step === 1 ? 1 : 'any', inputmode: 'decimal'} : {type: 'text'};
  return html`<input ...${all} ...${more} placeholder=${String(fallback)}/>`;
}

// `parts` are those that are shown, with their names.
const PARTS = {options: 'Options', grammar: 'Structured output', tools: 'Tools'};
export function OptionForm({values, set, chat, error, without = [], parts = PARTS}) {
  const {shape = 'none'} = values, found = mistakes(values, chat), open = useRef({});
  const opened = name => (open.current[name] ||= !!error && (groupOf(error.param) === name)) || undefined; // it stays open then
  const wrong = name => found[name] ?? (error?.param === name ? error.message : null);
  const text = (name, label, help, placeholder) => html`
    <${Field} label=${label} help=${help} error=${wrong(name)} typed=${error?.param !== name}>${(id, described) => html`
      <textarea id=${id} rows="5" aria-invalid=${wrong(name) ? 'true' : null} spellcheck=${false} aria-describedby=${described} placeholder=${placeholder}
        value=${values[name] ?? ''} onInput=${event => set(name, event.target.value)}></textarea>`}<//>`;
  const choice = (name, label, value, options) => html`<${Field} label=${label} error=${wrong(name)}>${id => html`
    <select id=${id} value=${value} onChange=${event => set(name, event.target.value)}>
      ${Object.entries(options).map(([one, shown]) => html`<option key=${one} value=${one}>${shown}</option>`)}</select>`}<//>`;
  const listed = Object.entries(OPTIONS).filter(([name, option]) => (chat || !option.chat) && !without.includes(name));
  return html`${parts.options && html`<details open=${opened('options')}><summary>${parts.options}</summary>
      <div class="fields">${listed.map(([name, option]) => html`
        <${Field} key=${name} label=${name} help=${option.help} error=${wrong(name)} typed=${error?.param !== name}>${(id, described) => html`
        <${Control} ...${{name, option, id, described, set}} invalid=${wrong(name) ? 'true' : null} value=${values[name]}/>`}<//>`)}</div></details>`}
    ${parts.grammar && html`<details open=${opened('grammar')}><summary>${parts.grammar}</summary>
      ${choice('shape', 'Output', shape, SHAPES)}
      ${shape !== 'none' && shape !== 'object'
        && text('grammar', SHAPES[shape], 'Decoding is constrained to it.', shape === 'schema' ? SCHEMA : '')}</details>`}
    ${chat && parts.tools && html`<details open=${opened('tools')}><summary>${parts.tools}</summary>
      ${text('tools', 'Functions', 'A list of functions with name, description and parameters (a JSON schema).', FUNCTIONS)}
      ${choice('tool_choice', 'tool_choice', values.tool_choice ?? '', CHOICES)}</details>`}`;
}
