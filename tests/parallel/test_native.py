"""Parallel runs of a real model by the native backend: the same bits, however they are computed."""

import numpy as np
import pytest

import stretto
from parallel_oracle import isolated, recorded, visible, who_sees_whom
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


@pytest.fixture(scope="module")
def llm(smollm2_path):
    with stretto.load(smollm2_path, cells=1024) as found:
        yield found


@pytest.fixture(scope="module")
def again(smollm2_path):
    """Another copy, by one thread, to compute runs again."""
    file = GGUF(smollm2_path)
    backend = NativeBackend(file, read_spec(file), 512, 1)
    yield backend
    backend.close()


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


def test_attention_of_a_quantised_file(llm, smollm2_path):
    run = llm.parallel(PROMPTS[0], mode="visible", attention=True, **{**OPTIONS, "max_tokens": 6})
    file = GGUF(smollm2_path)
    exact = ReferenceBackend(file, read_spec(file), 64)
    rows, mask = who_sees_whom(llm.tokenizer.encode(PROMPTS[0], special=True), run.steps[:-1], visible)
    batch = Batch()
    for token, position, _, _ in rows:
        batch.add(token, position, [0])
    batch.place(Cells(64))
    dense = np.zeros((len(rows), 64), bool)
    dense[:, batch.placement.cells] = mask
    weights = np.stack(exact.compute(batch, dense, attention=True).attention)[..., batch.placement.cells]
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


@pytest.mark.parametrize("name", ["llama", "gemma3", "qwen2", "qwen3"])
def test_attention_of_an_f32_file(tmp_path, name):
    source = tiny_file(name)
    tensors = {key: tensor.dequantize() for key, tensor in source.tensors.items()}
    write_gguf(tmp_path / "f32.gguf", source.metadata, tensors)
    file = GGUF(tmp_path / "f32.gguf")
    found = []
    for backend in (
        ReferenceBackend(file, tiny_spec(name), 64),
        NativeBackend(file, tiny_spec(name), 64, 2, "f32"),
    ):
        batch = Batch()
        tokens = np.random.default_rng(4).integers(0, 96, 40).tolist()
        for position, token in enumerate(tokens):
            batch.watch(batch.add(token, min(position, 30), [0], logits=True))
        batch.place(Cells(64))
        found.append((backend.forward(batch), batch.attention))
    for exact, ours in zip(*[attention for _, attention in found], strict=True):
        assert ours.shape == exact.shape
        np.testing.assert_allclose(ours, exact, atol=1e-4)
        np.testing.assert_allclose(ours.sum(axis=-1), 1, atol=1e-5)
    np.testing.assert_allclose(found[1][0], found[0][0], atol=1e-3)
