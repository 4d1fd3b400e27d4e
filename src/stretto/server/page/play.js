// Play: a prompt or a conversation, its answer token by token, alternatives, forks.
import {html, useEffect, useState} from './vendor/preact.js';
import {Conversation, Prompt, sends} from './conversation.js';
import {curlCode, libraryCode, openaiCode} from './copying.js';
import {OptionForm} from './options.js';
import {
  change, clear, continueText, edit, fork, generate, node, reply, select, session, stop, subscribe, tokens,
} from './session.js';
import {TokenText, probability} from './tokens.js';
import {children, label} from './tree.js';
import {Bar, Copy, Field, Tabs, differs, percent, visible} from './ui.js';

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
    return html`<section class="wide"><h2>Play</h2>
      <p>${model.name} does not write texts; <a href="#models">Models</a> has a form for it.</p></section>`;
  }
  return html`<section aria-labelledby="h-play"><h2 id="h-play">Play</h2>
      <${Tabs} label="Input" tabs=${canChat ? {chat: 'Chat', text: 'Text'} : {text: 'Text'}}
        current=${chat ? 'chat' : 'text'} onChange=${to => change({mode: to})}/>
      <form onSubmit=${start}>
        ${chat ? html`<${Conversation} vision=${model?.vision} start=${start}/>` : html`<${Prompt} start=${start}/>`}
        <${OptionForm} ...${{values, set, chat, error}}/>
        <div class="row"><button class="primary" disabled=${!name}>Generate</button>
          <button type="button" disabled=${!busy} onClick=${stop}>Stop</button></div></form>
      ${error && !error.param && html`<p class="bad" role="alert">${error.message}</p>`}
      ${one && html`<${Answer} ...${{one, tree, current, chosen, busy, model}}/>`}</section>
    <aside class=${chosen == null ? '' : 'open'} aria-labelledby="h-alternatives">
      <${Alternatives} current=${current} chosen=${chosen}/>
      <div class="row"><h2>Tree</h2>${tree.nodes.size > 0 && html`<button type="button" onClick=${clear}>Clear</button>`}</div>
      ${tree.nodes.size ? html`<${Tree} parent=${null}/>` : html`<p class="soft">Texts and their forks are listed here.</p>`}
    </aside>`;
}

const focusAlternatives = () => document.querySelector('#alternatives button')?.focus();

function Answer({one, tree, current, chosen, busy, model}) {
  const isChat = one.request.source.mode === 'chat', choose = at => change({chosen: at});
  return html`<${TokenText} ...${{tree, chosen, choose}} node=${one} enter=${focusAlternatives}/>
    <div class="row"><p id="end" role="status" class="soft">${busy ? '' : summary(one)}</p>
      ${!busy && tokens().length > 0 && html`<button type="button" onClick=${continueText}>Continue</button>`}</div>
    ${isChat && !busy && (one.calls.length ? html`<${Results} key=${current} calls=${one.calls} model=${model.name}/>`
      : html`<${Next} key=${current} model=${model.name}/>`)}
    <${CopyRow} one=${one} model=${model}/>`;
}

function summary({usage, timings, finish}) {
  if (!usage) return finish ?? '';
  const cached = usage.prompt_tokens_details.cached_tokens;
  return [finish, `${usage.completion_tokens} tokens`, `${timings.tokens_per_second.toFixed(0)} tok/s`,
    `first token ${(1e3 * timings.first_token).toFixed(0)} ms`,
    `${cached} of ${usage.prompt_tokens} prompt tokens from the cache`,
    ...(usage.cache_difference ? [differs(usage.cache_difference)] : [])].join(' · ');
}

function Results({calls, model}) { // a form for the results of the model's calls
  const [results, set] = useState(calls.map(() => ''));
  const send = event => {
    event.preventDefault();
    reply(model, ...calls.map((call, i) => ({role: 'tool', tool_call_id: call.id, content: results[i]})));
  };
  const put = (i, text) => set(results.map((old, j) => j === i ? text : old));
  return html`<form onSubmit=${send} aria-label="Tool calls">${calls.map((call, i) => html`
      <${Field} key=${i} label=${`Result of ${call.function.name}`} help=${call.function.arguments}>${(id, described) => html`
        <textarea id=${id} aria-describedby=${described} value=${results[i]}
          onInput=${event => put(i, event.target.value)}></textarea>`}<//>`)}
    <button class="primary">Send results</button></form>`;
}

function Next({model}) {
  const [text, set] = useState('');
  const send = event => { event.preventDefault(); if (text.trim()) reply(model, {role: 'user', content: text}); };
  return html`<form onSubmit=${send}><${Field} label="Next message">${id => html`
    <textarea id=${id} value=${text} onInput=${event => set(event.target.value)} onKeyDown=${sends(send)}></textarea>`}<//>
    <button>Send</button></form>`;
}

function CopyRow({one, model}) {
  const root = new URL('../', import.meta.url).href, {path, body, begun} = one.request;
  const whole = () => begun.length ? {...body, continue_token_ids: begun} : body;
  return html`<div class="row"><${Copy} label="Copy as Python (openai)" text=${() => openaiCode(path, whole(), root)}/>
    <${Copy} label="Copy as Python (stretto)" text=${() => libraryCode(path, whole(), model?.source ?? body.model)}/>
    <${Copy} label="Copy as curl" text=${() => curlCode(path, whole(), root)}/></div>`;
}

function Alternatives({current, chosen}) {
  const all = tokens(), token = chosen == null ? null : all[chosen], [text, set] = useState('');
  useEffect(() => set(token?.text ?? ''), [current, chosen]);
  if (!token) {
    return html`<h2 id="h-alternatives">Alternatives</h2><p class="soft">Choose a token, by a click or by arrow keys,
      to see what else was likely there; choose one of those, and the text goes on from it.</p>`;
  }
  const leave = () => { change({chosen: null}); requestAnimationFrame(() => document.getElementById('text')?.focus()); };
  const go = event => change({chosen: Math.max(1, Math.min(all.length, +event.target.value || 1)) - 1});
  const submit = event => { event.preventDefault(); edit(chosen, text); };
  const p = probability(token);
  return html`<h2 id="h-alternatives" aria-live="polite">Instead of “${visible(token.text)}”${p != null && `, ${percent(p)}`}</h2>
    <div class="row"><${Field} label="Token" inline>${id => html`
        <input id=${id} type="number" min="1" max=${all.length} value=${chosen + 1} onChange=${go}/>`}<//>
      <button type="button" onClick=${leave}>Close</button></div>
    <ul class="plain" id="alternatives" onKeyDown=${event => { if (event.key === 'Escape') leave(); }}>${token.top.map(one => html`
      <li key=${one.id}><button type="button" aria-pressed=${one.id === token.id} onClick=${() => fork(chosen, one)}>
        <code>${visible(one.text)}</code><span class="num">${percent(Math.exp(one.logprob))}</span>
        <${Bar} value=${Math.exp(one.logprob)} label=${`probability of ${visible(one.text)}`}/></button></li>`)}</ul>
    <form onSubmit=${submit}><${Field} label="Other text here">${id => html`
      <input id=${id} value=${text} onInput=${event => set(event.target.value)}/>`}<//><button>Go on from it</button></form>`;
}

function Tree({parent}) {
  const found = children(session.tree, parent);
  return found.length > 0 && html`<ul class="tree">${found.map(one => html`<li key=${one.id}>
    <button type="button" aria-current=${one.id === session.current} onClick=${() => select(one.id)}>${label(one)}</button>
    <${Tree} parent=${one.id}/></li>`)}</ul>`;
}
