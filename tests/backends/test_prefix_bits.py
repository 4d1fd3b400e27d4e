"""What comes from the cache is what would have been computed: `==`. What is turned is near it."""

from contextlib import contextmanager

import numpy as np
import pytest

import stretto
from stretto import Batch, _native
from stretto.backends.native import NativeBackend
from stretto.backends.reference import ReferenceBackend
from stretto.hardware import kernel_sets
from stretto.llm import LLM
from stretto.testing import byte_tokenizer
from tiny_models import tiny_file, tiny_spec

ONE = 1  # thread: the bits are the same with more, and a busy machine has no other to spare
ARCHITECTURES = ["llama", "qwen2", "qwen3", "gemma3"]
HOW = {"greedy": {"temperature": 0}, "seeded": {"temperature": 0.9, "seed": 11, "top_k": 0}}


@contextmanager
def counted(llm):
    """A list of the sizes of all forward passes within."""
    sizes, forward = [], llm.backend.forward

    def counting(batch):
        sizes.append(len(batch))
        return forward(batch)

    llm.backend.forward = counting
    yield sizes
    del llm.backend.forward


def words(n, seed=0):
    return np.random.default_rng(seed).integers(0, 90, n).tolist()


def tiny_llm(name, kv="f16", cells=512, prefix_cache=True):
    file, spec = tiny_file(name), tiny_spec(name)
    if kv == "reference":
        backend = ReferenceBackend(file, spec, cells)
    else:
        backend = NativeBackend(file, spec, cells, ONE, kv)
    return LLM(backend, byte_tokenizer(), prefix_cache=prefix_cache)


class Models:
    """Pairs of models, with the prefix cache and without, each loaded once."""

    def __init__(self, path):
        self._path = path  # a function: tiny models need no file
        self._loaded = {}

    def pair(self, name, kv):
        if (name, kv) not in self._loaded:
            if name == "smollm2":
                options = {"cells": 1500, "kv": kv, "threads": ONE}
                found = [stretto.load(self._path(), prefix_cache=on, **options) for on in (True, False)]
            else:
                found = [tiny_llm(name, kv, prefix_cache=on) for on in (True, False)]
            self._loaded[name, kv] = found
        for llm in self._loaded[name, kv]:
            llm.cells.clear()
        return self._loaded[name, kv]

    def close(self):
        for pair in self._loaded.values():
            for llm in pair:
                llm.close()


@pytest.fixture(scope="module")
def models(request):
    found = Models(lambda: request.getfixturevalue("smollm2_path"))
    yield found
    found.close()


def shared_prompts(llm, name):
    """Prompts that begin alike, for a real tokenizer or a tiny vocabulary."""
    if name == "smollm2":
        system = "You are a helpful assistant who knows the sea, its ships and its harbours very well. " * 3
        return [
            llm.tokenizer.encode(system + rest) for rest in ("Hello", "What is a mast?", "What is a keel?")
        ]
    return [words(50) + words(n, seed=n) for n in (3, 9, 14)]


# -- prefixes --

EVERYWHERE = [
    (name, kv, how) for name in ("llama", "gemma3", "smollm2") for kv in ("f16", "q8") for how in HOW
]
EVERYWHERE += [("llama4", "f16", "greedy"), ("smallthinker", "q8", "seeded"), ("minicpm3", "f16", "seeded")]
EVERYWHERE += [("deepseek32", "q8", "seeded"), ("glm-dsa", "f16", "greedy")]


@pytest.mark.one_in(5)
@pytest.mark.parametrize(("name", "kv", "how"), EVERYWHERE)
def test_one_after_another_in_a_list_and_streamed(models, name, kv, how):
    options = {"max_tokens": 6, "ignore_eos": True, "logprobs": 2, "loop": "python", **HOW[how]}
    found, sizes = [], []
    for llm in models.pair(name, kv):
        prompts = shared_prompts(llm, name)
        with counted(llm) as passes:
            results = [llm.generate(prompt, **options) for prompt in prompts]
            results += llm.generate(prompts, **options)
            llm.cells.clear()
            results += llm.generate(prompts, **options)  # all new: two of them wait for the first
            results.append(llm.stream(prompts[1], **options).result)
            results += llm.generate(prompts[0], n=3, **options)
        found.append([(result.tokens, result.text, result.logprobs) for result in results])
        sizes.append(sum(passes))
        assert llm.cache.stats().held == 0
    assert found[0] == found[1]
    n = sum(map(len, prompts))
    fewer = 2 * n - min(map(len, prompts)) - 60  # at least: the second half is there, and shared beginnings
    assert sizes[0] < sizes[1] - fewer


@pytest.mark.parametrize("kv", ["f16", "q8"])
@pytest.mark.parametrize("how", HOW)
def test_turns_of_a_chat(models, kv, how):
    options = {"max_tokens": 12, "loop": "python", **HOW[how]}
    found, sizes = [], []
    for llm in models.pair("smollm2", kv):
        messages = [{"role": "system", "content": "You answer in a few words. " * 5}]
        with counted(llm) as passes:
            for question in ("What is the capital of France?", "And of Italy?", "Name a river there."):
                messages.append({"role": "user", "content": question})
                answer = llm.chat(messages, **options)
                messages.append({"role": "assistant", "content": answer.text})
        found.append(messages)
        sizes.append(sum(passes))
    assert found[0] == found[1]
    assert sizes[0] < 0.6 * sizes[1]


@pytest.mark.parametrize(
    ("name", "kv"), [(name, kv) for name in (*ARCHITECTURES, "smollm2") for kv in ("f16", "q8")]
)
def test_logits_behind_a_prefix(models, name, kv):
    cached, plain = models.pair(name, kv)
    prompt, other = shared_prompts(cached, name)[1:]
    expected = plain.sequence(prompt).logits.copy()
    cached.sequence(other).close()
    with cached.sequence(other) as seq:
        seq.logits  # noqa: B018
    for _ in range(2):  # behind a part of the other, then behind itself
        with counted(cached) as passes, cached.sequence(prompt) as seq:
            np.testing.assert_array_equal(seq.logits, expected)
            assert sum(passes) == len(prompt) - seq.n_cached
            assert seq.n_cached > 40
    assert seq.n_cached == len(prompt) - 1


def test_ten_forks_of_a_long_prompt(models):
    llm, plain = models.pair("smollm2", "f16")
    text = "The lighthouse keeper wrote down every ship that passed, its flag, its course and its cargo. "
    prompt = llm.tokenizer.encode(text * 60)[:1000]
    seq = llm.sequence(prompt)
    expected = seq.logits.copy()
    copied, copy = [], llm.backend.copy_cells
    llm.backend.copy_cells = lambda *cells: copied.append(cells) or copy(*cells)
    with counted(llm) as passes:
        forks = [seq.fork(seed=i) for i in range(10)]
        assert (llm.cells.n_used, passes) == (1000, [])
        for fork in forks:
            np.testing.assert_array_equal(fork.logits, expected)
        for step in range(1, 4):
            llm.step(forks, temperature=3.0, top_k=0, top_p=1.0)
            assert passes == [10] * (step - 1)  # one pass for all; what is sampled last is pending
            assert llm.cells.n_used == 1000 + 10 * (step - 1)
    assert len({tuple(fork.tokens[1000:]) for fork in forks}) > 5
    assert copied == []
    del llm.backend.copy_cells
    with plain.sequence(forks[3].tokens) as alone:
        np.testing.assert_array_equal(forks[3].logits, alone.logits)


# -- turning --


def keys(llm, cells):
    """float32[n, layers, heads, head_size]: what the cache holds for some cells."""
    spec, backend = llm.spec, llm.backend
    if backend.name == "reference":
        return np.stack([keys[cells] for keys in backend.keys], axis=1)
    kind = backend.cell_layout.split()[1].rstrip(",")
    heads = backend.read_cells(cells).reshape(len(cells) * spec.n_layer * 2 * spec.n_kv_head, -1)
    loaded = _native.ops.load_heads(heads, spec.head_size, kind, kernel_sets.select())
    return loaded.reshape(len(cells), spec.n_layer, 2, spec.n_kv_head, spec.head_size)[:, :, 0]


def computed_keys(llm, tokens, start):
    """K of tokens that were computed at positions from `start` on, and nowhere else before."""
    llm.cells.remove(7)
    batch = Batch()
    batch.extend(tokens, start, [7])
    llm.forward(batch)
    return keys(llm, llm.cells.view(7))


# Of the largest K of a head. Halves have 11 bits, 8 bits a step of 1 / 127; K was rounded before and after.
ROUNDING = {"reference": 1e-5, "f16": 1.5e-3, "q8": 1.2e-2}


def near(found, expected, kv, factor=1.0):
    largest = np.abs(expected).max(axis=-1, keepdims=True)
    assert np.abs((found - expected) / largest).max() <= factor * ROUNDING[kv]


@pytest.mark.parametrize("kv", ROUNDING)
@pytest.mark.parametrize("name", [*ARCHITECTURES, "llama-yarn", "gemma3-linear"])
def test_turned_keys(name, kv):
    llm = tiny_llm(name, kv, prefix_cache=False)
    text = words(40)
    seq = llm.sequence(text)
    seq.shift(0, by=25)
    found, expected = keys(llm, llm.cells.view(seq.id)), computed_keys(llm, text, 25)
    near(found[:, 0], expected[:, 0], kv)
    near(found, expected, kv, 8)  # deeper layers have seen rounded ones before
    seq = llm.sequence(text)
    before = keys(llm, llm.cells.view(seq.fork().id))
    seq.remove(10, 24, close=True)
    after = keys(llm, llm.cells.view(seq.id))
    np.testing.assert_array_equal(after[:10], before[:10])
    # In the first layer K follows from token and position alone; in all of them, turning back undoes it.
    near(after[:, 0], computed_keys(llm, text[:10] + text[24:], 0)[:, 0], kv)
    seq.shift(10, by=14)
    near(keys(llm, llm.cells.view(seq.id)), np.delete(before, range(10, 24), axis=0), kv, 2)


@pytest.mark.parametrize("kv", ROUNDING)
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_a_tiny_context_that_overflows(name, kv):
    options = {"max_tokens": 200, "overflow": "shift", "keep": 3, "ignore_eos": True, "logprobs": 1}
    first, again = (tiny_llm(name, kv, cells=48).generate(words(30), seed=5, **options) for _ in range(2))
    assert (first.tokens, first.logprobs) == (again.tokens, again.logprobs)
    assert len(first.tokens) == 200
    assert np.isfinite([token.logprob for token in first.logprobs]).all()


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kv", ["f16", "q8"])
def test_a_context_that_overflows(smollm2_path, kv):
    options = {"max_tokens": 90, "overflow": "shift", "keep": 4, "ignore_eos": True, "temperature": 0}
    with stretto.load(smollm2_path, cells=64, kv=kv, threads=ONE) as llm:
        prompt = "Once upon a time there was a lighthouse keeper who"
        first = llm.generate(prompt, logprobs=1, **options)
        assert (first.finish_reason, len(first.tokens)) == ("length", 90)
        assert np.isfinite([token.logprob for token in first.logprobs]).all()
        for change in ({"loop": "python"}, {"loop": "fused"}):
            assert llm.generate(prompt, **options, **change).tokens == first.tokens
        assert llm.cache.stats().held == 0
        with llm.sequence(prompt) as seq:
            for _ in range(64):
                if seq.position == llm.context_length:
                    seq.remove(4, 34, close=True)
                assert np.isfinite(seq.logits).all()
                seq.step(temperature=0)
        llm.cells.check()
