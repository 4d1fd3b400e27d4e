// The only file that calls fetch. Paths are relative to the server's root, wherever a proxy has put it.
const ROOT = new URL('../', import.meta.url);

export class ApiError extends Error {
  constructor(status, {message, code = null, param = null} = {}) {
    super(message || `the server answered with status ${status}`);
    Object.assign(this, {status, code, param});
  }
}

// The API key lives as long as the tab. `ask` is set by the shell: it resolves to a key, or to null if the user declines.
export const key = {
  ask: null,
  get: () => sessionStorage.getItem('stretto.key'),
  set(value) { sessionStorage.setItem('stretto.key', value); key.declined = false; },
  clear: () => sessionStorage.removeItem('stretto.key'),
  declined: false,
};
let asking = null;

async function askForKey(reason) {
  if (key.declined || !key.ask) return null;
  asking ??= key.ask(reason).finally(() => { asking = null; });
  return asking;
}

async function request(path, {method = 'GET', body, signal} = {}) {
  for (;;) {
    const used = key.get(), isForm = body instanceof FormData, headers = used ? {authorization: `Bearer ${used}`} : {};
    if (body && !isForm) headers['content-type'] = 'application/json';
    let answer;
    try {
      const sent = body && !isForm ? JSON.stringify(body) : body;
      answer = await fetch(new URL(path.replace(/^\//, ''), ROOT), {method, headers, signal, body: sent});
    } catch (error) {
      if (error.name === 'AbortError') throw error;
      throw new ApiError(0, {message: 'the server cannot be reached', code: 'unreachable'});
    }
    if (answer.ok) return answer;
    const error = new ApiError(answer.status, (await answer.json().catch(() => ({}))).error);
    signal?.throwIfAborted();
    if (answer.status !== 401) throw error;
    if (key.get() === used && !(await askForKey(error.message))) throw error;
  }
}

export const get = async path => (await request(path)).json();
export const post = async (path, body, signal) => (await request(path, {method: 'POST', body, signal})).json();
export const del = async path => (await request(path, {method: 'DELETE'})).json();

// The data of server-sent events, parsed. EventSource cannot send a key, so they are read from a fetch. `opened` gets the headers.
export async function* events(path, {method = 'GET', body, signal, opened} = {}) {
  const answer = await request(path, {method, body, signal});
  opened?.(answer.headers);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  try {
    for (;;) {
      const {value, done} = await reader.read();
      if (done) return;
      const parts = (rest + value).split('\n\n');
      rest = parts.pop();
      for (const part of parts) {
        const at = part.startsWith('id: ') ? part.indexOf('\n') + 1 : 0; // of a stream that can be read on
        if (!part.startsWith('data: ', at)) continue;
        const data = part.slice(at + 6);
        if (data === '[DONE]') return;
        const event = JSON.parse(data);
        if (event.error) throw new ApiError(answer.status, event.error);
        yield event;
      }
    }
  } catch (error) {
    if (error instanceof TypeError) throw new ApiError(0, {message: 'the connection was lost', code: 'unreachable'});
    throw error;
  } finally {
    reader.cancel().catch(() => {});
  }
}
