// The input of Play: a prompt, or messages that can all be edited, with images.
import {html, useState} from './vendor/preact.js';
import {change, session} from './session.js';
import {Field} from './ui.js';

export const IMAGE_BYTES = 8 << 20;
const ROLES = ['system', 'user', 'assistant', 'tool'];

// Ctrl+Enter sends.
export const sends = send => event => { if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) send(event); };

export function Prompt({start}) {
  return html`<${Field} label="Prompt">${id => html`<textarea id=${id} rows="5" value=${session.prompt}
    onInput=${event => change({prompt: event.target.value})} onKeyDown=${sends(start)}></textarea>`}<//>`;
}

export function Conversation({vision, start}) {
  const {messages} = session, empty = role => ({role, content: '', images: []});
  const put = (i, more) => change({messages: session.messages.map((message, j) => j === i ? {...message, ...more} : message)});
  const remove = i => change({messages: messages.filter((_, j) => j !== i)});
  return html`${messages.map((message, i) => html`<${Message} key=${i} ...${{message, vision, start}} n=${i + 1}
      put=${more => put(i, more)} remove=${messages.length > 1 ? () => remove(i) : null}/>`)}
    <div class="row"><button type="button" onClick=${() => change({messages: [...messages, empty('user')]})}>Add a message</button>
      ${messages[0].role !== 'system' && html`<button type="button"
        onClick=${() => change({messages: [empty('system'), ...messages]})}>Add a system message</button>`}</div>`;
}

function Message({message, n, put, remove, vision, start}) {
  const {role, content, images, tool_calls} = message, [problem, say] = useState(''), takes = role === 'user';
  const add = async (event, files) => {
    const found = [...(files ?? [])].filter(file => file.type.startsWith('image/'));
    if (!takes || !found.length) return;
    event.preventDefault();
    if (vision === false) { say('This model takes no images.'); return; }
    if (found.some(file => file.size > IMAGE_BYTES)) { say('An image may have 8 MiB at most.'); return; }
    say('');
    put({images: [...images, ...await Promise.all(found.map(read))]});
  };
  return html`<div class="message" onDrop=${event => add(event, event.dataTransfer.files)}
      onDragOver=${event => { if (takes) event.preventDefault(); }}>
    <div class="row"><select aria-label=${`Role of message ${n}`} value=${role}
        onChange=${event => put({role: event.target.value})}>
        ${ROLES.map(one => html`<option key=${one} value=${one}>${one}</option>`)}</select>
      ${takes && vision !== false && html`<label class="file">Add images<input type="file" accept="image/*" multiple
        onChange=${event => { add(event, event.target.files); event.target.value = ''; }}/></label>`}
      ${remove && html`<button type="button" aria-label=${`Remove message ${n}`} onClick=${remove}>Remove</button>`}</div>
    <textarea aria-label=${`Message ${n}`} rows=${takes ? 3 : 2} value=${content}
      onInput=${event => put({content: event.target.value})}
      onPaste=${event => add(event, event.clipboardData.files)} onKeyDown=${sends(start)}></textarea>
    ${tool_calls && html`<pre>${tool_calls.map(call => `${call.function.name}(${call.function.arguments})`).join('\n')}</pre>`}
    ${problem && html`<small class="bad" role="alert">${problem}</small>`}
    ${images.length > 0 && html`<div class="row">${images.map((url, i) => html`<figure key=${i}>
      <img src=${url} alt=${`Image ${i + 1} of message ${n}`}/>
      <button type="button" aria-label=${`Remove image ${i + 1} of message ${n}`}
        onClick=${() => put({images: images.filter((_, j) => j !== i)})}>Remove</button></figure>`)}</div>`}</div>`;
}

export const read = file => new Promise((resolve, reject) => {
  const reader = new FileReader();
  reader.onload = () => resolve(reader.result);
  reader.onerror = () => reject(reader.error);
  reader.readAsDataURL(file);
});
