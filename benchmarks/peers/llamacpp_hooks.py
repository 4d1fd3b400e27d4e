"""Measures llama-cpp-python with and without a `logits_processor`; `hooks.py` starts it in its environment.

`Llama.generate` is what its users call and what all its other calls go through: token after token, greedy.
"""

import random
from functools import cache
from itertools import islice

import llama_cpp
import numpy as np
from lines import Stopwatch, serve


@cache
def load(model, threads, n_ctx):
    return llama_cpp.Llama(model, n_ctx=n_ctx, n_threads=threads, n_threads_batch=threads, verbose=False)


@cache
def processors(kind, n_vocab):
    """What goes into `logits_processor=`: as its documentation shows it, scores in, scores out."""
    bias = np.random.default_rng(0).normal(0.0, 0.1, n_vocab).astype(np.float32)

    def add(ids, scores):
        return scores + bias

    def nothing(ids, scores):
        return scores

    found = {"none": None, "empty": nothing, "bias": add}[kind]
    return found and llama_cpp.LogitsProcessorList([found])


def about():
    return {"version": f"llama-cpp-python {llama_cpp.__version__}"}


def decode(model, threads, tokens, seed, hook, loop):
    llm = load(model, threads, tokens + 1)
    start = [random.Random(seed).randrange(llm.n_vocab())]
    chosen = processors(hook, llm.n_vocab())
    with Stopwatch() as watch:
        for _ in islice(llm.generate(start, temp=0.0, logits_processor=chosen), tokens):
            pass
    return watch.answer


def close():
    load.cache_clear()
    return {}


if __name__ == "__main__":
    serve({function.__name__: function for function in (about, decode, close)})
