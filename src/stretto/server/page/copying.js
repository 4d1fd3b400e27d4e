// A request as code: for OpenAI's package, for the library, for curl.
const EXTRA = new Set(['top_k', 'min_p', 'repetition_penalty', 'ignore_eos', 'stop_tokens', 'continue_token_ids', 'timeout', 'grammar', 'cache_pin', 'chat_template_kwargs']);
const OF_THE_PAGE = new Set(['stream', 'stream_options', 'logprobs', 'top_logprobs', 'return_token_ids']);
const LIBRARY_NAMES = {chat_template_kwargs: 'template'};

export const essential = body => Object.fromEntries(Object.entries(body).filter(([name]) => !OF_THE_PAGE.has(name)));

// A JSON value as Python writes it.
export function python(value, indent = '') {
  if (value === null) return 'None';
  if (value === true) return 'True';
  if (value === false) return 'False';
  if (typeof value !== 'object') return JSON.stringify(value);
  const isList = Array.isArray(value), inner = `${indent}    `, [open, close] = isList ? '[]' : '{}';
  const parts = isList ? value.map(one => python(one, inner)) : Object.entries(value).map(([name, one]) => `${JSON.stringify(name)}: ${python(one, inner)}`);
  const line = open + parts.join(', ') + close;
  return line.length < 90 && !line.includes('\n') ? line : `${open}\n${parts.map(part => `${inner}${part},\n`).join('')}${indent}${close}`;
}

const keywords = (entries, indent) => entries.map(([name, value]) => `${indent}${name}=${python(value, indent)},\n`).join('');

export function openaiCode(path, body, root) {
  const all = Object.entries(essential(body)), extra = all.filter(([name]) => EXTRA.has(name));
  const call = path.includes('chat') ? 'chat.completions' : 'completions', text = path.includes('chat') ? 'message.content' : 'text';
  return `import os\n\nfrom openai import OpenAI\n\nclient = OpenAI(base_url=${JSON.stringify(`${root}v1`)}, api_key=os.environ.get("STRETTO_API_KEY", "none"))\nanswer = client.${call}.create(\n`
    + keywords(all.filter(([name]) => !EXTRA.has(name)), '    ') + (extra.length ? keywords([['extra_body', Object.fromEntries(extra)]], '    ') : '')
    + `)\nprint(answer.choices[0].${text})\n`;
}

export function libraryCode(path, body, source) {
  const {model, messages, prompt, response_format, grammar, continue_token_ids: begun, n, cache_pin, ...rest} = essential(body);
  const shape = response_format?.json_schema.schema ?? (grammar?.type === 'json' ? grammar.schema : null), chat = path.includes('chat');
  const options = Object.entries(rest).map(([name, value]) => [LIBRARY_NAMES[name] ?? name, value]);
  if (shape) options.push(['grammar', shape]);
  let more = keywords(options, '        ');
  if (grammar && grammar.type !== 'json') more += `        grammar=stretto.Grammar.${grammar.type}(${python(grammar.pattern ?? grammar.grammar ?? grammar.choices, '        ')}),\n`;
  const input = python(chat ? messages : prompt, '    '), load = `import stretto\n\nwith stretto.load(${JSON.stringify(source)}) as llm:\n`;
  if (!begun) return `${load}    result = llm.${chat ? 'chat' : 'generate'}(\n        ${input},\n${more}    )\n    print(result.text)\n`;
  const start = chat ? `llm.chat_prompt(${input})` : `llm.tokenizer.encode(${input}, special=True)`;
  return `${load}    prompt = ${start}\n    begun = ${python(begun, '    ')}  # the answer so far\n    result = llm.generate(\n        [*prompt, *begun],\n        continues=len(begun),\n${more}    )\n    print(result.text)\n`;
}

export function curlCode(path, body, root) {
  const data = JSON.stringify(essential(body), null, 2).replaceAll("'", "'\\''");
  return `curl ${root}${path.slice(1)} \\\n  -H "Authorization: Bearer $STRETTO_API_KEY" \\\n  -d '${data}'\n`;
}
