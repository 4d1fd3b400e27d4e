"""Measures Stretto through its public calls, greedy sampling included; `vs_llamacpp.py` starts it."""

import platform
import random
from contextlib import ExitStack
from functools import cache

from lines import Stopwatch, resident_bytes, serve

import stretto

opened = ExitStack()  # models and sequences that stay for the next round
GREEDY = {"temperature": 0}


@cache
def load(model, threads, kv, cells):
    # Prompts come again within a round, and are to be computed again.
    llm = opened.enter_context(stretto.load(model, threads=threads, kv=kv, cells=cells, prefix_cache=False))
    llm.backend.settle()
    return llm


@cache
def prefixes(model, threads, kv, cells, count, length):
    """Sequences of random tokens, computed: rounds fork them."""
    llm = load(model, threads, kv, cells)
    made = [opened.enter_context(llm.sequence(ids(llm, length, seed))) for seed in range(count)]
    for sequence in made:
        sequence.fork().close()
    return made


def ids(llm, count, seed):
    return random.Random(seed).choices(range(min(llm.spec.n_vocab, llm.tokenizer.n_vocab)), k=count)


def about():
    return {"version": f"stretto {stretto.__version__}, Python {platform.python_version()}"}


def prefill(model, threads, prompt, seed, kv="f16", warm=False):
    llm = load(model, threads, kv, 2 * prompt)
    tokens = ids(llm, min(prompt, 64) if warm else prompt, seed)
    with Stopwatch() as watch:
        llm.generate(tokens, max_tokens=1, temperature=0, ignore_eos=True)
    return watch.answer


def decode(model, threads, tokens, seed, depth=0, kv="f16", warm=False, sampling=GREEDY):
    if depth:
        return behind(model, threads, kv, 1, depth, tokens, warm, sampling)
    llm = load(model, threads, kv, tokens + 1)
    start, most = ids(llm, 1, seed), min(4, tokens) if warm else tokens
    with Stopwatch() as watch:
        for _ in llm.stream(start, max_tokens=most, ignore_eos=True, **sampling):
            pass
    return watch.answer


def batch(model, threads, sequences, prompt, tokens, seed, kv="f16", warm=False, sampling=GREEDY):
    return behind(model, threads, kv, sequences, prompt, tokens, warm, sampling)


def behind(model, threads, kv, count, length, tokens, warm, sampling):
    """Decode behind prefixes: `tokens` steps, each a pass over all sequences."""
    cells = count * (length + tokens + 2)
    llm = load(model, threads, kv, cells)
    with ExitStack() as closing:
        found = prefixes(model, threads, kv, cells, count, length)
        sequences = [closing.enter_context(sequence.fork()) for sequence in found]
        step(llm, sequences, sampling)  # takes the logits of the prefixes
        with Stopwatch() as watch:
            for _ in range(min(4, tokens) if warm else tokens):
                step(llm, sequences, sampling)
    return watch.answer


def step(llm, sequences, sampling):
    for sequence, done in zip(sequences, llm.step(sequences, **sampling), strict=True):
        if done.is_end:
            sequence.append(done.token)


def first_token(model, threads, text, seed, warm=False):
    """From nothing to the first token, in a process that has loaded nothing before."""
    with Stopwatch() as watch:
        llm = stretto.load(model, threads=threads)
        next(iter(llm.stream(text, temperature=0, ignore_eos=True)))
    llm.backend.settle()
    answer = {**watch.answer, "bytes": resident_bytes()}
    llm.close()
    return answer


def load_only(model, threads, seed, warm=False):
    """From nothing to a model that takes calls."""
    with Stopwatch() as watch:
        llm = stretto.load(model, threads=threads)
    llm.close()
    return watch.answer


def close():
    opened.close()
    prefixes.cache_clear()
    load.cache_clear()
    return {}


if __name__ == "__main__":
    serve(
        {
            function.__name__: function
            for function in (about, prefill, decode, batch, first_token, load_only, close)
        }
    )
