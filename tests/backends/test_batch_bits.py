"""The promise for requests: each gives the tokens that it gives alone, whatever runs beside it.

"Alone" is the same request in a fresh model that nothing else has used. Beside others, requests join and
leave at different steps, prompts come in pieces, and cells are so few that some requests are parked.
"""

import random

import numpy as np
import pytest

import stretto
from stretto import Limits
from stretto.backends.native import NativeBackend
from stretto.hooks import Ban, Bias
from stretto.llm import LLM
from stretto.testing import byte_tokenizer
from tiny_models import tiny_file, tiny_spec

N = 12
PACED = Limits(max_tokens_per_step=24, max_step_ms=0.5)
ROOMY = Limits(max_running=5)


def wanted(n_vocab, longest, stops, seed):
    """Twelve requests of mixed lengths: (prompt, options)."""
    rng = random.Random(seed)
    shared = rng.choices(range(2, n_vocab), k=longest // 2)
    ban, bias = Ban([3, 7]), Bias({5: 2.0, 9: -3.0})  # one object for all
    kinds = [
        {"temperature": 0},
        {"temperature": 1.2},
        {"temperature": 0.9, "repetition_penalty": 1.3},
        {"presence_penalty": 0.6, "frequency_penalty": 0.4},
        {"stop": stops},
        {"hooks": [ban, bias]},
        {"temperature": 1.5, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "hooks": [ban]},
        {"logit_bias": {4: 3.0, 6: -np.inf}, "logprobs": 2},
    ]
    found = []
    for i in range(N):
        length = rng.choice((1, 2, 9, longest // 3, longest))
        prompt = rng.choices(range(2, n_vocab), k=length)
        if i % 3 == 0:
            prompt = (shared + prompt)[:longest]
        options = {"max_tokens": rng.randint(3, 30), "seed": i, "ignore_eos": True, **kinds[i % len(kinds)]}
        found.append((prompt, options))
    return found


def outcome(result):
    return result.tokens, result.text, result.finish_reason, result.stop_reason, result.logprobs


def together(llm, requests, seed):
    """All of them, joining while others run; the results in order."""
    rng = random.Random(seed)
    streams = {}
    order = rng.sample(range(len(requests)), len(requests))
    for index in order:
        prompt, options = requests[index]
        streams[index] = llm.stream(prompt, priority=rng.choice((0, 0, 1)), **options)
        for _ in range(rng.randint(0, 4)):
            next(rng.choice(list(streams.values())), None)
    return [streams[index].result for index in range(len(requests))]


def compare(load, cells, few, requests):
    """Alone, with many cells, and with so few that requests are parked; with a prefix cache and without."""
    alone = []
    with load(cells, None, True) as model:
        for prompt, options in requests:
            fresh = LLM(model.backend, model.tokenizer)  # new cells, nothing cached
            alone.append(outcome(fresh.generate(prompt, **options)))
    parked = 0
    for n_cells, limits, prefix_cache, seed in (
        (cells, ROOMY, True, 0),
        (cells, PACED, True, 1),
        (few, PACED, True, 2),
        (few, PACED, False, 3),
    ):
        with load(n_cells, limits, prefix_cache) as llm:
            found = [outcome(result) for result in together(llm, requests, seed)]
            assert found == alone, (n_cells, limits, prefix_cache)
            assert llm.cache.stats().held == 0
            llm.cells.check()
            parked += llm.metrics.preempted
    assert parked > 0


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3"])
def test_tiny(name):
    def load(cells, limits, prefix_cache):
        backend = NativeBackend(tiny_file(name), tiny_spec(name), cells, 1)
        return LLM(backend, byte_tokenizer(), limits=limits, prefix_cache=prefix_cache)

    requests = wanted(tiny_spec(name).n_vocab, 80, ["a", "0", "Z"], 1)
    compare(load, 1024, 128, requests)


@pytest.mark.slow
def test_smollm2(smollm2_path):
    def load(cells, limits, prefix_cache):
        return stretto.load(smollm2_path, cells=cells, limits=limits, prefix_cache=prefix_cache)

    compare(load, 1024, 140, wanted(5000, 96, [" the", "e", "o"], 2))


def test_siblings_and_beams_beside_others():
    def load(cells):
        return LLM(
            NativeBackend(tiny_file("llama"), tiny_spec("llama"), cells, 1), byte_tokenizer(), limits=PACED
        )

    prompt = list(range(2, 50))
    cases = [{"n": 3, "seed": 4}, {"n": 2, "best_of": 4, "seed": 5}, {"beams": 3}, {"n": 2, "beams": 4}]

    def tokens(result):
        return [one.tokens for one in result] if isinstance(result, list) else result.tokens

    for options in cases:
        with load(512) as llm:
            alone = tokens(llm.generate(prompt, max_tokens=12, **options))
        with load(128) as llm:
            others = [llm.stream([i] * 30, max_tokens=40, seed=i) for i in range(2, 6)]
            next(others[0])
            assert tokens(llm.generate(prompt, max_tokens=12, **options)) == alone
            assert llm.metrics.preempted > 0
            for stream in others:
                stream.cancel()
            assert llm.cache.stats().held == 0
            llm.cells.check()
