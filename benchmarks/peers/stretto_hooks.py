"""Measures Stretto with and without hooks; `hooks.py` starts it."""

import ctypes
import platform
import random
import subprocess
import tempfile
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import numpy as np
from lines import Stopwatch, serve

import stretto

opened = ExitStack()


@cache
def load(model, threads, cells):
    return opened.enter_context(stretto.load(model, threads=threads, cells=cells))


@cache
def compiled():
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "hooks.so"
        source = Path(__file__).with_name("hooks.c")
        subprocess.run(["cc", "-O3", "-shared", "-fPIC", "-o", library, source], check=True)
        return ctypes.CDLL(str(library))


@cache
def hooks(kind, n_vocab):
    """What goes into `hooks=`: as a user would write it."""
    bias = np.random.default_rng(0).normal(0.0, 0.1, n_vocab).astype(np.float32)

    def add(logits, tokens):
        logits += bias

    def nothing(logits, tokens):
        pass

    makers = {
        "none": list,
        "empty": lambda: [nothing],
        "bias": lambda: [add],
        "native empty": lambda: [stretto.NativeHook(compiled().empty)],
        "native bias": lambda: [stretto.NativeHook(compiled().bias, state=bias)],
    }
    return makers[kind]()


def about():
    return {"version": f"stretto {stretto.__version__}, Python {platform.python_version()}"}


def decode(model, threads, tokens, seed, hook, loop):
    llm = load(model, threads, tokens + 1)
    start = [random.Random(seed).randrange(llm.tokenizer.n_vocab)]
    options = {"max_tokens": tokens, "temperature": 0, "ignore_eos": True, "loop": loop}
    chosen = hooks(hook, llm.spec.n_vocab)
    with Stopwatch() as watch:
        for _ in llm.stream(start, hooks=chosen, **options):
            pass
    return watch.answer


def close():
    opened.close()
    load.cache_clear()
    return {}


if __name__ == "__main__":
    serve({function.__name__: function for function in (about, decode, close)})
