"""A live connection that a test holds in its hands: frames of a table of cells, pushed into the page."""

import base64
import zlib

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


def frame(positions, sets, members, sequences, images=(), model="mock"):
    """A frame as the server sends it."""
    n, is_image = len(positions), np.zeros(len(positions), "u1")
    is_image[list(images)] = 1
    columns = np.asarray(positions, "<i4").tobytes() + np.asarray(sets, "<u2").tobytes() + is_image.tobytes()
    packed = base64.b64encode(zlib.compress(columns)).decode()
    return {"model": model, "n": n, "columns": packed, "sets": members, "sequences": sequences}


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
