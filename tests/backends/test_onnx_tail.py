"""Decode steps of ONNX decoders whose call is bound once, and their fused loop: results stay the same."""

from functools import cache

import numpy as np
import pytest

import stretto
from param_names import named
from same_results import same
from stretto.backends.base import BackendOptions
from stretto.backends.batch import Batch, Decoding
from stretto.cache.cells import Cells
from stretto.errors import ModelError

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

from onnx_decoders import DATA, GENAI
from stretto.backends.onnx import OnnxBackend, open_onnx
from stretto.export.decoder import build
from stretto.weights.onnx.folder import find_folder
from tiny_models import tiny_file, tiny_spec

N_CELLS = 64
PRECISIONS = ("f32", "f16")
PROMPT = [3, 5, 8, 13, 21]


@pytest.fixture(scope="module")
def llm():
    with stretto.load(DATA / GENAI, threads=1, cells=512) as llm:
        yield llm


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    @cache
    def opened(name, precision):
        folder = tmp_path_factory.mktemp(f"{name}-{precision}")
        model = build(tiny_file(name), tiny_spec(name, N_CELLS), precision, "gqa")
        (folder / "model.onnx").write_bytes(model.SerializeToString())
        return open_onnx(find_folder(folder), BackendOptions("cpu", N_CELLS, 1))

    def fresh(name, precision="f32"):
        model = opened(name, precision)
        return OnnxBackend(model.session, model.graph, model.decoder, N_CELLS, 1)

    return fresh


class Text:
    """A sequence of a backend, step by step; `plain` runs each step as any other batch."""

    def __init__(self, backend, plain=False):
        self.backend, self.cells, self.plain = backend, Cells(N_CELLS), plain
        batch = Batch()
        batch.extend(PROMPT, 0, [0], logits=True)
        batch.place(self.cells)
        self.rows = [backend.forward(batch)[0]]

    def step(self, token, sequence=0):
        batch = Decoding(self.cells, [token], [sequence])
        self.rows.append(self.backend.forward(batch)[0])
        if self.plain:
            self.backend.end_tail()


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", ["llama", "gemma3"])  # the second one has windows
def test_steps_have_the_bits_of_any_batch(exported, name, precision):
    bound, plain = Text(exported(name, precision)), Text(exported(name, precision), plain=True)
    n_bound = 0
    for token in range(7, 47):
        bound.step(token)
        plain.step(token)
        n_bound += (
            bound.backend.tail is not None and bound.backend.tail.n == len(PROMPT) + len(bound.rows) - 1
        )
    assert n_bound == 40
    for mine, other in zip(bound.rows, plain.rows, strict=True):  # none of them was overwritten
        assert mine.dtype == np.float32
        assert np.array_equal(mine, other)
    cells = bound.cells.view(0)
    assert np.array_equal(bound.backend.read_cells(cells), plain.backend.read_cells(cells))


def test_rows_that_nobody_has_are_used_again(exported):
    text = Text(exported("llama"))
    text.step(7)
    addresses = set()
    for token in range(8, 24):
        text.step(token)
        addresses.add(text.rows.pop().ctypes.data)
    assert len(addresses) == 1
    text.step(24)
    held = text.rows[-1].copy()
    text.step(25)
    assert np.array_equal(text.rows[-2], held)
    assert text.rows[-1].ctypes.data != text.rows[-2].ctypes.data


def test_sequences_in_turn_and_edits_between_steps(exported):
    """Another sequence, a fork, a truncation, cells that are written: each ends what was bound."""
    bound, plain = Text(exported("llama")), Text(exported("llama"), plain=True)
    for text in (bound, plain):
        for token in (7, 8, 9):
            text.step(token)
        text.cells.copy(0, 1)
        for token in (10, 11, 12):
            text.step(token, 1)
            text.step(token + 1, 0)
        text.step(14, 0)
        text.step(15, 0)
        text.cells.remove(0, 9)
        text.step(16, 0)
        text.step(17, 0)
        view = text.cells.view(0)
        text.backend.write_cells(view[:3].copy(), text.backend.read_cells(view[1:4].copy()))
        text.step(18, 0)
        text.step(19, 0)
        text.step(20, 1)
    for mine, other in zip(bound.rows, plain.rows, strict=True):
        assert np.array_equal(mine, other)


def test_a_step_that_fails_loses_nothing(exported, monkeypatch):
    bound, plain = Text(exported("llama")), Text(exported("llama"), plain=True)
    for text in (bound, plain):
        for token in (7, 8, 9):
            text.step(token)
    with monkeypatch.context() as patch:
        patch.setattr(bound.backend.tail, "run_bound", lambda binding: 1 / 0)
        bound.cells.hold()
        with pytest.raises(ModelError, match="cannot compute"):
            bound.step(10)
        bound.cells.rollback()
    for text in (bound, plain):
        for token in (11, 12, 13):
            text.step(token)
    for mine, other in zip(bound.rows, plain.rows, strict=True):
        assert np.array_equal(mine, other)


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0},
        {"seed": 5},
        {"seed": 7, "temperature": 1.4, "repetition_penalty": 1.2, "logit_bias": {60: -np.inf}},
        {"seed": 9, "stop_tokens": [60, 84, 28]},
        {"seed": 6, "grammar": stretto.Grammar.regex("[a-f]{3,50}")},
        {"seed": 6, "grammar": stretto.Grammar.regex("(ab|cdefgh){20}")},  # with forced tokens
    ],
    ids=named,
)
@pytest.mark.parametrize("max_tokens", [2, 32, 33, 90])
def test_the_fused_loop_makes_the_same_text(llm, options, max_tokens):
    assert llm.backend.capabilities.ahead
    options = {"ignore_eos": "grammar" not in options, "max_tokens": max_tokens, **options}
    python, fused, usual = (
        llm.generate(PROMPT, loop=loop, **options) for loop in ("python", "fused", "auto")
    )
    same(python, fused)
    same(python, usual)
    llm.cells.check()


def test_sequences_and_callbacks_beside_the_loop(llm):
    """A callback computes another sequence in the middle: the loop goes on with its own cells."""
    alone = llm.generate(PROMPT, temperature=0, ignore_eos=True, max_tokens=40)
    with llm.sequence([9, 9, 9]) as other:
        seen = []

        def callback(token):
            if len(seen) % 5 == 0:
                other.append(7)
                other.logits  # noqa: B018 - computed now
            seen.append(token.id)
            return True

        beside = llm.generate(PROMPT, temperature=0, ignore_eos=True, max_tokens=40, callback=callback)
        assert beside.tokens == alone.tokens == seen
        logits = other.logits.copy()
    with llm.sequence([9, 9, 9, *[7] * 8]) as again:
        assert np.abs(again.logits - logits).max() < 3e-5


def test_graphs_without_a_shared_buffer_have_no_loop():
    with stretto.load(DATA / "llama", threads=1, cells=64) as llm:
        assert not llm.backend.capabilities.fused
        with pytest.raises(stretto.Unsupported, match="cannot do 'fused'"):
            llm.generate(PROMPT, loop="fused", max_tokens=3)
