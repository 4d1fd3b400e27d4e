"""Parallel runs of a real model by the native backend: the same bits, however they are computed."""

import re

import numpy as np
import pytest

from parallel_oracle import by_mask, isolated, recorded, tiny_llm, visible, who_sees_whom
from stretto.backends.base import host_rows
from stretto.backends.batch import Batch
from stretto.backends.native import NativeBackend
from stretto.backends.reference import ReferenceBackend
from stretto.cache.cells import Cells
from stretto.models import read_spec
from stretto.weights.gguf import GGUF
from stretto.weights.writer import write_gguf
from tiny_models import tiny_file, tiny_spec

PROMPTS = ["The cat sat", "My favourite colour is", "The best way to"]
OPTIONS = {"threshold": 0.08, "max_width": 4, "max_tokens": 16, "ignore_eos": True}
MODES = {"isolated": isolated, "visible": visible}


def same(found, expected):
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("mode", MODES)
def test_threshold_1_is_greedy(llm, mode):
    for prompt in PROMPTS:
        greedy = llm.generate(prompt, temperature=0, max_tokens=16, ignore_eos=True)
        run, found = recorded(llm, prompt, mode=mode, **{**OPTIONS, "threshold": 1.0})
        assert (run.tokens, run.text) == (greedy.tokens, greedy.text)
        with llm.sequence(prompt) as plain:
            for token, rows in zip(run.tokens, found, strict=False):
                plain.append(token)
                same(rows[0], plain.logits)


def test_the_first_documented_call_shows_sets(llm):
    run = llm.parallel("My favourite colour is", max_tokens=20)
    assert re.search(r"\[[^/]+/[^]]+\]", run.brackets)
    assert run.parallel_share >= 0.1


def test_runs_and_requests_share_a_batch(llm, monkeypatch):
    alone = [recorded(llm, prompt, mode=mode, **OPTIONS) for prompt in PROMPTS for mode in MODES]
    text = llm.generate("Once upon a time", temperature=0, max_tokens=16, ignore_eos=True).text
    passes = []
    forward = llm.backend.forward
    monkeypatch.setattr(llm.backend, "forward", lambda batch: passes.append(len(batch)) or forward(batch))
    other = llm.stream("Once upon a time", temperature=0, max_tokens=16, ignore_eos=True)
    streams = [
        llm.parallel(prompt, stream=True, mode=mode, **OPTIONS) for prompt in PROMPTS for mode in MODES
    ]
    together = [stream.result for stream in streams]
    assert other.result.text == text
    assert [run.brackets for run in together] == [run.brackets for run, _ in alone]
    assert [[m.probability for m in step.members] for run in together for step in run.steps] == [
        [m.probability for m in step.members] for run, _ in alone for step in run.steps
    ]
    assert len(passes) <= 16 + 6  # a pass for all, and a few for prompts
    assert llm.cache.stats().held == 0


def test_from_a_fork(llm):
    with llm.sequence(PROMPTS[0]) as seq:
        run = llm.parallel(seq, **OPTIONS)
        assert seq.tokens == llm.tokenizer.encode(PROMPTS[0], special=True)
        assert run.brackets == llm.parallel(PROMPTS[0], **OPTIONS).brackets
        seq.logits[run.steps[0].best.id] = -np.inf  # a run begins with the logits as they are now
        assert llm.parallel(seq, **OPTIONS).steps[0].best.id == run.steps[0].members[1].id


def test_prefixes_are_shared_up_to_the_first_set(llm):
    llm.cache.clear()
    run = llm.parallel(PROMPTS[0], **OPTIONS)
    prompt = llm.tokenizer.encode(PROMPTS[0], special=True)
    first = next(i for i, step in enumerate(run.steps) if step.width > 1)
    result = llm.generate([*prompt, *run.tokens], max_tokens=1, temperature=0)
    assert result.usage.cached_tokens == len(prompt) + first


def test_one_forward_pass_a_step(llm, monkeypatch):
    llm.cache.clear()
    sizes = []
    forward = llm.backend.forward
    monkeypatch.setattr(llm.backend, "forward", lambda batch: sizes.append(len(batch)) or forward(batch))
    for mode in MODES:
        for options in ({}, {"attention": True, "prune": 0.9}):
            llm.cache.clear()
            sizes.clear()
            run = llm.parallel(PROMPTS[0], mode=mode, **OPTIONS, **options)
            n_prompt = len(llm.tokenizer.encode(PROMPTS[0], special=True))
            assert sizes == [n_prompt, *[step.width for step in run.steps[:-1]]]
            assert max(sizes[1:]) > 1


@pytest.mark.parametrize("mode", MODES)
def test_attention_of_a_quantised_file(llm, smollm2_path, mode):
    run = llm.parallel(PROMPTS[0], mode=mode, attention=True, **{**OPTIONS, "max_tokens": 8})
    assert run.parallel_share >= 0.3
    file = GGUF(smollm2_path)
    exact = ReferenceBackend(file, read_spec(file), 64)
    rows, mask = who_sees_whom(llm.tokenizer.encode(PROMPTS[0], special=True), run.steps[:-1], MODES[mode])
    weights = by_mask(exact, rows, mask)[1]
    distances = []
    for i, step in enumerate(run.steps[:-1]):
        mine = [r for r, row in enumerate(rows) if row[2] == i]
        order = sorted(
            (r for r, row in enumerate(rows) if row[2] <= i), key=lambda r: (rows[r][1], rows[r][0])
        )
        np.testing.assert_allclose(step.attention.weights.sum(axis=-1), 1, atol=1e-5)
        difference = step.attention.weights - weights[:, :, mine][..., order]
        distances.append(0.5 * np.abs(difference).sum(axis=-1).ravel())
    assert np.concatenate(distances).mean() <= 0.05


@pytest.fixture(params=["llama", "gemma3", "qwen2", "qwen3"])
def f32(request, tmp_path):
    """A tiny model in float32, by both backends."""
    source = tiny_file(request.param)
    tensors = {key: tensor.dequantize() for key, tensor in source.tensors.items()}
    write_gguf(tmp_path / "f32.gguf", source.metadata, tensors)
    file, spec = GGUF(tmp_path / "f32.gguf"), tiny_spec(request.param)
    return ReferenceBackend(file, spec, 128), NativeBackend(file, spec, 128, 2, "f32")


def test_attention_of_an_f32_file(f32):
    found = []
    for backend in f32:
        batch = Batch()
        tokens = np.random.default_rng(4).integers(0, 96, 40).tolist()
        for position, token in enumerate(tokens):
            batch.watch(batch.add(token, min(position, 30), [0], logits=True))
        batch.place(Cells(128))
        found.append((host_rows(backend.forward(batch)), batch.attention))
    for exact, ours in zip(*[attention for _, attention in found], strict=True):
        assert ours.shape == exact.shape
        np.testing.assert_allclose(ours, exact, atol=1e-4)
        np.testing.assert_allclose(ours.sum(axis=-1), 1, atol=1e-5)
    np.testing.assert_allclose(found[1][0], found[0][0], atol=1e-3)


@pytest.mark.parametrize("mode", MODES)
def test_attention_of_runs_on_an_f32_file(f32, mode):
    options = {"threshold": 0.02, "max_width": 3, "max_tokens": 12, "ignore_eos": True, "attention": True}
    exact, ours = (tiny_llm(backend).parallel([5, 60, 17, 33, 2], mode=mode, **options) for backend in f32)
    assert ours.parallel_share >= 0.3
    for mine, other in zip(ours.steps[:-1], exact.steps[:-1], strict=True):
        assert [member.id for member in mine.members] == [member.id for member in other.members]
        assert mine.attention.tokens.tolist() == other.attention.tokens.tolist()
        np.testing.assert_allclose(mine.attention.weights, other.attention.weights, atol=1e-4)
        np.testing.assert_allclose(mine.attention.weights.sum(axis=-1), 1, atol=1e-5)
