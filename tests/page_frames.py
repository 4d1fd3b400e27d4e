"""A live connection that a test holds in its hands: frames of a table of cells, pushed into the page."""

import base64

import numpy as np

# The page reads its live events from here. `picture` is what was copied to a canvas last, and `painted` has
# the top and the height of each copy, in pixels. Highlights last until `fade()` is called.
SOURCE = """(() => {
  const {fetch, setTimeout} = window, coder = new TextEncoder(), held = [];
  const context = CanvasRenderingContext2D.prototype, put = context.putImageData;
  let stream = null;
  const send = event => stream.enqueue(coder.encode(`data: ${JSON.stringify(event)}\\n\\n`));
  const start = controller => { stream = controller; send({hello: {version: '0'}}); };
  const fade = () => held.splice(0).map(go => go()).length;
  Object.assign(window, {painted: [], picture: null, asked: 0, fade, push: event => send(event)});
  window.setTimeout = (go, delay) => delay === 600 ? held.push(go) : setTimeout(go, delay);
  window.fetch = (url, options) => {
    if (!String(url).includes('/stretto/live')) return fetch(url, options);
    window.asked += String(url).includes('cells=1');
    return Promise.resolve(new Response(new ReadableStream({start})));
  };
  context.putImageData = function (...args) {
    window.picture = args[0];
    window.painted.push([args[4], args[6]]);
    return put.apply(this, args);
  };
})()"""


def encoded(numbers, kind):
    return base64.b64encode(np.asarray(numbers, kind).tobytes()).decode()


def frame(positions, sets, members, sequences, at=None, images=(), model="mock", n=None):
    """A frame as the server sends it; whole unless it says which cells it is about."""
    told = {"model": model, "version": 1, "n": n or len(positions), "full": at is None, "sets": members}
    if at is not None:
        told["at"] = encoded(at, "<u4")
    columns = {"positions": encoded(positions, "<i4"), "set": encoded(sets, "<u2")}
    return {**told, **columns, "sequences": sequences, "images": encoded(images, "<u4")}


def sequence(state, n, mine=True):
    return {"state": state, "mine": mine, "n": n}


def push(page, **told):
    """Send an event when the page listens."""
    page.evaluate(
        """async told => {
            while (!window.asked) await new Promise(go => setTimeout(go, 5));
            window.push(told);
        }""",
        told,
    )
