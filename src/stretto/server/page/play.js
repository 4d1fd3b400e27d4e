// Play: a prompt or a conversation, its answer token by token, alternatives, forks.
import {html, useEffect, useRef, useState} from './vendor/preact.js';
import {curlCode, libraryCode, openaiCode} from './copying.js';
import {OptionForm} from './options.js';
import {change, clear, continueText, edit, fork, generate, node, reply, select, session, stop, subscribe, tokens} from './session.js';
import {TokenText, probability} from './tokens.js';
import {children, label} from './tree.js';
import {Bar, Copy, Field, Tabs, percent, visible} from './ui.js';

const IMAGE_BYTES = 8 << 20, ROLES = ['system', 'user', 'assistant', 'tool'];
const SENDS = event => event.key === 'Enter' && (event.ctrlKey || event.metaKey);

function useSession() {
  const [, again] = useState(0);
  useEffect(() => subscribe(() => again(n => n + 1)), []);
  return session;
}

export default function Play({model}) {
  const {mode, current, chosen, busy, error, values, tree} = useSession();
  const name = model?.name, one = node(), canChat = model?.template !== false, chat = mode === 'chat' && canChat;
  useEffect(() => { if (!canChat && mode === 'chat') change({mode: 'text'}); }, [canChat]);
  const start = event => { event?.preventDefault(); if (name) generate(name); };
  const set = (field, value) => change({values: {...values, [field]: value}, error: error?.param === field ? null : error});
  if (model?.verbs && !model.verbs.includes('generate')) {
    return html`<section class="wide"><h2>Play</h2><p>${model.name} does not write texts; <a href="#models">Models</a> has a form for it.</p></section>`;
  }
  const general = error && !error.param ? error : null;
  return html`<section aria-labelledby="h-play"><h2 id="h-play">Play</h2>
      <${Tabs} label="Input" tabs=${canChat ? {chat: 'Chat', text: 'Text'} : {text: 'Text'}} current=${chat ? 'chat' : 'text'} onChange=${to => change({mode: to})}/>
      <form onSubmit=${start}>${chat ? html`<${Conversation} vision=${model?.vision} start=${start}/>` : html`<${Prompt} start=${start}/>`}
        <${OptionForm} ...${{values, set, chat, error}}/>
        <div class="row"><button class="primary" disabled=${!name}>Generate</button>
          <button type="button" disabled=${!busy} onClick=${stop}>Stop</button></div></form>
      ${general && html`<p class="bad" role="alert">${general.message}</p>`}
      ${one && html`<${TokenText} tree=${tree} node=${one} chosen=${chosen} choose=${at => change({chosen: at})} enter=${focusAlternatives}/>
        <${Ending} one=${one} busy=${busy} model=${name}/>
        ${one.calls.length > 0 && !busy && html`<${Answers} key=${current} calls=${one.calls} model=${name}/>`}
        ${one.request.source.mode === 'chat' && !busy && !one.calls.length && html`<${Next} key=${current} model=${name}/>`}
        <${CopyRow} one=${one} model=${model}/>`}</section>
    <aside aria-labelledby="h-alternatives"><${Alternatives} current=${current} model=${name} chosen=${chosen}/>
      <div class="row"><h2>Tree</h2>${tree.nodes.size > 0 && html`<button type="button" onClick=${clear}>Clear</button>`}</div>
      ${tree.nodes.size ? html`<${Tree} parent=${null}/>` : html`<p class="soft">Texts and their forks are listed here.</p>`}</aside>`;
}

const focusAlternatives = () => document.querySelector('#alternatives button')?.focus();

function Prompt({start}) {
  return html`<${Field} label="Prompt">${id => html`<textarea id=${id} rows="5" value=${session.prompt} onInput=${event => change({prompt: event.target.value})}
    onKeyDown=${event => { if (SENDS(event)) start(event); }}></textarea>`}<//>`;
}

function Conversation({vision, start}) {
  const {messages} = session;
  const put = (i, more) => change({messages: messages.map((message, j) => j === i ? {...message, ...more} : message)});
  const remove = i => change({messages: messages.filter((_, j) => j !== i)});
  return html`${messages.map((message, i) => html`<${Message} key=${i} ...${{message, vision, start}} n=${i + 1} put=${more => put(i, more)} remove=${messages.length > 1 ? () => remove(i) : null}/>`)}
    <div class="row"><button type="button" onClick=${() => change({messages: [...messages, {role: 'user', content: '', images: []}]})}>Add a message</button>
      ${messages[0].role !== 'system' && html`<button type="button" onClick=${() => change({messages: [{role: 'system', content: '', images: []}, ...messages]})}>Add a system message</button>`}</div>`;
}

function Message({message, n, put, remove, vision, start}) {
  const {role, content, images, tool_calls} = message, [problem, say] = useState(''), takes = role === 'user';
  const add = async files => {
    const found = [...files].filter(file => file.type.startsWith('image/'));
    if (!found.length) return;
    if (vision === false) { say('This model takes no images.'); return; }
    if (found.some(file => file.size > IMAGE_BYTES)) { say('An image may have 8 MiB at most.'); return; }
    say('');
    const urls = await Promise.all(found.map(read));
    put({images: [...images, ...urls]});
  };
  const drop = event => { if (takes && event.dataTransfer.files.length) { event.preventDefault(); add(event.dataTransfer.files); } };
  const paste = event => { if (takes && event.clipboardData.files.length) { event.preventDefault(); add(event.clipboardData.files); } };
  return html`<div class="message" onDrop=${drop} onDragOver=${event => { if (takes) event.preventDefault(); }}>
    <div class="row"><select aria-label=${`Role of message ${n}`} value=${role} onChange=${event => put({role: event.target.value})}>${ROLES.map(one => html`<option key=${one}>${one}</option>`)}</select>
      ${takes && vision !== false && html`<label class="file">Add images<input type="file" accept="image/*" multiple onChange=${event => { add(event.target.files); event.target.value = ''; }}/></label>`}
      ${remove && html`<button type="button" aria-label=${`Remove message ${n}`} onClick=${remove}>Remove</button>`}</div>
    <textarea aria-label=${`Message ${n}`} rows=${role === 'user' ? 3 : 2} value=${content} onInput=${event => put({content: event.target.value})} onPaste=${paste}
      onKeyDown=${event => { if (SENDS(event)) start(event); }}></textarea>
    ${tool_calls && html`<pre>${tool_calls.map(call => `${call.function.name}(${call.function.arguments})`).join('\n')}</pre>`}
    ${problem && html`<small class="bad" role="alert">${problem}</small>`}
    ${images?.length > 0 && html`<div class="row">${images.map((url, i) => html`<figure key=${i}><img src=${url} alt=${`Image ${i + 1} of message ${n}`}/>
      <button type="button" aria-label=${`Remove image ${i + 1} of message ${n}`} onClick=${() => put({images: images.filter((_, j) => j !== i)})}>Remove</button></figure>`)}</div>`}</div>`;
}

const read = file => new Promise((resolve, reject) => {
  const reader = new FileReader();
  reader.onload = () => resolve(reader.result);
  reader.onerror = () => reject(reader.error);
  reader.readAsDataURL(file);
});

function Ending({one, busy, model}) {
  const {usage, timings, finish} = one;
  const said = busy ? '' : [finish, usage && `${usage.completion_tokens} tokens`, timings && `${timings.tokens_per_second.toFixed(0)} tok/s`,
    timings && `first token ${(1e3 * timings.first_token).toFixed(0)} ms`, usage && `${usage.prompt_tokens_details.cached_tokens} of ${usage.prompt_tokens} prompt tokens from the cache`].filter(Boolean).join(' · ');
  return html`<div class="row"><p id="end" role="status" class="soft">${said}</p>
    ${!busy && tokens().length > 0 && html`<button type="button" onClick=${() => continueText(model)}>Continue</button>`}</div>`;
}

function Answers({calls, model}) { // a form for the results of the model's calls
  const [results, set] = useState(calls.map(() => ''));
  const send = event => {
    event.preventDefault();
    reply(model, ...calls.map((call, i) => ({role: 'tool', tool_call_id: call.id, content: results[i]})));
  };
  return html`<form onSubmit=${send} aria-label="Tool calls">${calls.map((call, i) => html`<${Field} key=${i} label=${`Result of ${call.function.name}`} help=${call.function.arguments}>${(id, described) => html`
      <textarea id=${id} aria-describedby=${described} value=${results[i]} onInput=${event => set(results.map((old, j) => j === i ? event.target.value : old))}></textarea>`}<//>`)}
    <button class="primary">Send results</button></form>`;
}

function Next({model}) {
  const [text, set] = useState('');
  const send = event => { event.preventDefault(); if (text.trim()) reply(model, {role: 'user', content: text}); };
  return html`<form onSubmit=${send}><${Field} label="Next message">${id => html`<textarea id=${id} value=${text} onInput=${event => set(event.target.value)}
    onKeyDown=${event => { if (SENDS(event)) send(event); }}></textarea>`}<//><button>Send</button></form>`;
}

function CopyRow({one, model}) {
  const root = new URL('../', import.meta.url).href, {path, body, begun} = one.request;
  const whole = () => begun.length ? {...body, continue_token_ids: begun} : body;
  return html`<div class="row"><${Copy} label="Copy as Python (openai)" text=${() => openaiCode(path, whole(), root)}/>
    <${Copy} label="Copy as Python (stretto)" text=${() => libraryCode(path, whole(), model?.source ?? body.model)}/><${Copy} label="Copy as curl" text=${() => curlCode(path, whole(), root)}/></div>`;
}

function Alternatives({model, current, chosen}) {
  const all = tokens(), token = chosen == null ? null : all[chosen], [text, set] = useState('');
  useEffect(() => set(token?.text ?? ''), [current, chosen]);
  const back = event => { if (event.key === 'Escape') { event.preventDefault(); document.getElementById('text')?.focus(); } };
  if (!token) return html`<h2 id="h-alternatives">Alternatives</h2><p class="soft">Choose a token, by a click or by arrow keys, to see what else was likely there; choose one of those, and the text goes on from it.</p>`;
  const p = probability(token);
  return html`<h2 id="h-alternatives">Instead of “${visible(token.text)}”${p != null && `, ${percent(p)}`}</h2>
    <${Field} label="Token" inline>${id => html`<input id=${id} type="number" min="1" max=${all.length} value=${chosen + 1} onChange=${event => change({chosen: Math.max(0, Math.min(all.length, +event.target.value || 1) - 1)})}/>`}<//>
    <ul class="plain" id="alternatives" onKeyDown=${back}>${token.top.map(one => html`<li key=${one.id}><button type="button" aria-pressed=${one.id === token.id} onClick=${() => fork(model, chosen, one)}>
      <code>${visible(one.text)}</code><span class="num">${percent(Math.exp(one.logprob))}</span><${Bar} value=${Math.exp(one.logprob)} label=${`probability of ${visible(one.text)}`}/></button></li>`)}</ul>
    <form onSubmit=${event => { event.preventDefault(); edit(model, chosen, text); }}><${Field} label="Other text here">${id => html`<input id=${id} value=${text} onInput=${event => set(event.target.value)}/>`}<//><button>Go on from it</button></form>`;
}

function Tree({parent}) {
  return html`<ul class="tree">${children(session.tree, parent).map(one => html`<li key=${one.id}>
    <button type="button" aria-current=${one.id === session.current} onClick=${() => select(one.id)}>${label(one)}</button><${Tree} parent=${one.id}/></li>`)}</ul>`;
}
