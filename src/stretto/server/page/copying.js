// A request as code: for OpenAI's package, for the library, for curl.
const EXTRA = new Set([
  'top_k', 'min_p', 'repetition_penalty', 'ignore_eos', 'stop_tokens', 'continue_token_ids', 'timeout', 'grammar', 'cache_pin',
  'chat_template_kwargs',
]);
const OF_THE_PAGE = new Set(['stream', 'stream_options', 'logprobs', 'top_logprobs', 'return_token_ids']);

class Expression { // Python that is no value of JSON
  constructor(text) { this.text = text; }
}

const essential = body => Object.fromEntries(Object.entries(body).filter(([name]) => !OF_THE_PAGE.has(name)));

// A JSON value as Python writes it.
function python(value, indent = '') {
  if (value === null || typeof value === 'boolean') return {null: 'None', true: 'True', false: 'False'}[value];
  if (value instanceof Expression) return value.text;
  if (typeof value !== 'object') return JSON.stringify(value);
  const isList = Array.isArray(value), inner = `${indent}    `, [open, close] = isList ? '[]' : '{}';
  const named = ([name, one]) => `${JSON.stringify(name)}: ${python(one, inner)}`;
  const parts = isList ? value.map(one => python(one, inner)) : Object.entries(value).map(named);
  const line = open + parts.join(', ') + close;
  if (line.length < 90 && !line.includes('\n')) return line;
  return `${open}\n${parts.map(part => `${inner}${part},\n`).join('')}${indent}${close}`;
}

const keywords = (entries, indent) => entries.map(([name, value]) => `${indent}${name}=${python(value, indent)},\n`).join('');

export function openaiCode(path, body, root) {
  const all = Object.entries(essential(body)), extra = all.filter(([name]) => EXTRA.has(name));
  const plain = all.filter(([name]) => !EXTRA.has(name));
  const [call, text] = path.includes('chat') ? ['chat.completions', 'message.content'] : ['completions', 'text'];
  return `import os

from openai import OpenAI

client = OpenAI(base_url=${JSON.stringify(`${root}v1`)}, api_key=os.environ.get("STRETTO_API_KEY", "none"))
answer = client.${call}.create(
${keywords(extra.length ? [...plain, ['extra_body', Object.fromEntries(extra)]] : plain, '    ')})
print(answer.choices[0].${text})
`;
}

// Images are files here.
function withImages({content, ...message}, i) {
  if (!Array.isArray(content)) return {...message, content};
  const open = j => new Expression(`stretto.Image.open("image-${i + 1}-${j + 1}.png")`);
  return {...message, content: content.map((part, j) => part.type === 'text' ? part.text : open(j))};
}

export function libraryCode(path, body, source) {
  const {model, messages, prompt, response_format, grammar, continue_token_ids: begun, cache_pin, ...rest} = essential(body);
  const shape = response_format?.json_schema.schema ?? (grammar?.type === 'json' ? grammar.schema : null);
  const chat = path.includes('chat'), input = python(chat ? messages.map(withImages) : prompt, '        ');
  const options = Object.entries(rest).map(([name, value]) => [name === 'chat_template_kwargs' ? 'template' : name, value]);
  let more = keywords(shape ? [...options, ['grammar', shape]] : options, '        ');
  if (grammar && grammar.type !== 'json') {
    more += `        grammar=stretto.Grammar.${grammar.type}(${python(grammar.pattern ?? grammar.grammar ?? grammar.choices)}),\n`;
  }
  const begins = `import stretto\n\nwith stretto.load(${JSON.stringify(source)}) as llm:\n`;
  const ends = `${more}    )\n    print(result.text)\n`;
  if (!begun) return `${begins}    result = llm.${chat ? 'chat' : 'generate'}(\n        ${input},\n${ends}`;
  return `${begins}    prompt = ${chat ? `llm.chat_prompt(${input})` : `llm.tokenizer.encode(${input}, special=True)`}
    begun = ${python(begun, '    ')}  # the answer so far
    result = llm.generate(
        [*prompt, *begun],
        continues=len(begun),
${ends}`;
}

export function curlCode(path, body, root) {
  const data = JSON.stringify(essential(body), null, 2).replaceAll("'", "'\\''");
  return `curl ${root}${path.slice(1)} \\\n  -H "Authorization: Bearer $STRETTO_API_KEY" \\\n  -d '${data}'\n`;
}
