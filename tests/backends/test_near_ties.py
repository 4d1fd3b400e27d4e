"""Experts at near ties: where native and reference are far apart, the router's scores were nearly equal.

Half floats in the KV cache, and activations of 8 bits, move a router's scores a little. Where the last chosen
expert and the first that is not chosen are that close, the other one is taken, and the row gets another sum.
The reference is made to take the other one too, and then agrees.
"""

from dataclasses import dataclass, field

import numpy as np
import pytest

from stretto import _native
from stretto.backends.native import NativeBackend
from stretto.backends.reference import ReferenceBackend, feed_forward
from stretto.backends.reference.layer import sigmoid, softmax
from stretto.models import read_spec
from stretto.weights.formats import Format
from stretto.weights.gguf import GGUF
from stretto.weights.writer import Quantized, write_gguf
from tiny_models import N_CELLS, text_logits, tiny_file

SAME, FAR = 0.02, 0.05  # of logits of unit variance
TIE = 1e-3  # of probabilities
# Seeds of texts in which half floats in the KV cache choose another expert.
TEXTS = {"qwen3moe": [35, 70, 190], "qwen2moe": [112, 176], "glm4-flash": [189, 200, 260]}


def text(name, seed):
    return np.random.default_rng(seed).integers(0, read_spec(tiny_file(name), N_CELLS).n_vocab, 48)


@dataclass
class Router:
    """Takes the place of the reference's `route`: keeps the gaps, and swaps the experts it is told to.

    A gap is between the last chosen expert and the first that is not, by router and row.
    """

    swapped: set[tuple[int, int]] = field(default_factory=set)
    gaps: list[np.ndarray] = field(default_factory=list)

    def __call__(self, routing, scores, correction):
        assert routing.n_group == 1
        order = softmax(scores) if routing.weights == "softmax" else sigmoid(scores)
        order = order if correction is None else order + correction
        ranked = np.argsort(-order, axis=1, kind="stable")
        best = np.take_along_axis(order, ranked, axis=1)
        router, last = len(self.gaps), routing.n_used - 1
        self.gaps.append(best[:, last] - best[:, last + 1])
        moved = np.zeros_like(order) if correction is None else np.tile(correction, (len(order), 1))
        for at, row in self.swapped:
            if at == router:  # only the order sees a correction, not the weights
                moved[row, ranked[row, last]] -= np.float32(1e3)
        return ROUTE(routing, scores, moved)


ROUTE = feed_forward.route


def reference(monkeypatch, file, tokens, swapped=()):
    """Its logits with some choices swapped, and the gaps [n_router, n]."""
    router = Router(set(swapped))
    monkeypatch.setattr(feed_forward, "route", router)
    logits = text_logits(ReferenceBackend(file, read_spec(file, N_CELLS), N_CELLS), tokens)
    return logits, np.array(router.gaps)


def native(file, tokens, **options):
    return text_logits(NativeBackend(file, read_spec(file, N_CELLS), N_CELLS, 1, **options), tokens)


def far(one, other):
    """The rows that are far apart."""
    return np.flatnonzero(np.abs(one - other).max(axis=1) > FAR)


def swaps(monkeypatch, file, tokens, found, tie):
    """The choices that make the reference compute `found`: each between experts that are nearly tied."""
    swapped: set[tuple[int, int]] = set()
    logits, gaps = reference(monkeypatch, file, tokens)
    while len(rows := far(found, logits)):
        row = int(rows[0])  # later ones may be far because they attend to it
        router = int(np.argmin(gaps[:, row]))
        assert gaps[router, row] < tie
        assert (router, row) not in swapped
        swapped.add((router, row))
        logits, gaps = reference(monkeypatch, file, tokens, swapped)
    assert np.abs(found - logits).max() < SAME
    return swapped


@pytest.mark.parametrize("kernels", _native.kernel_names())
@pytest.mark.parametrize("name", TEXTS)
def test_the_same_choice_removes_the_difference(name, kernels, monkeypatch):
    monkeypatch.setenv("STRETTO_KERNELS", kernels)
    file = tiny_file(name)
    texts = [text(name, seed) for seed in TEXTS[name]]
    assert sum(len(swaps(monkeypatch, file, tokens, native(file, tokens), TIE)) for tokens in texts)


@pytest.mark.parametrize("kernels", _native.kernel_names())
@pytest.mark.parametrize("name", TEXTS)
def test_with_floats_in_the_cache_the_choice_is_the_reference_s(name, kernels, monkeypatch):
    """Matrices of floats are multiplied in floats in either precision: only K and V were rounded."""
    monkeypatch.setenv("STRETTO_KERNELS", kernels)
    file = tiny_file(name)
    for seed in TEXTS[name]:
        tokens = text(name, seed)
        exact, _ = reference(monkeypatch, file, tokens)
        for precision in ("standard", "high"):
            assert np.abs(native(file, tokens, kv="f32", precision=precision) - exact).max() < 1e-4


@pytest.mark.parametrize("kernels", _native.kernel_names())
@pytest.mark.parametrize("name", TEXTS)
def test_high_precision_chooses_as_the_reference_does(name, kernels, tmp_path, monkeypatch):
    """Of quantised weights, but for ties that K and V decide: far closer ones with floats in the cache."""
    monkeypatch.setenv("STRETTO_KERNELS", kernels)
    path = tmp_path / "quantized.gguf"
    quantize(tiny_file(name), path)
    file, n_rounded, n_high = GGUF(path), 0, 0
    for seed in range(12):
        tokens = text(name, seed)
        for kv, tie in (("f16", TIE), ("f32", TIE / 100)):
            found = native(file, tokens, kv=kv, precision="high")
            n_high += len(swaps(monkeypatch, file, tokens, found, tie))
        exact, _ = reference(monkeypatch, file, tokens)
        rounded = np.abs(native(file, tokens) - exact).max(axis=1)
        n_rounded += np.count_nonzero(rounded > 8 * np.median(rounded))
    assert n_rounded > n_high


def quantize(file, path):
    """Write a model with its matrices in Q8_0 where their rows are whole blocks, but for routers."""
    tensors = {}
    for name, tensor in file.tensors.items():
        kept = len(tensor.shape) < 2 or tensor.shape[-1] % Format.Q8_0.block or "gate_inp" in name
        numbers = tensor.dequantize().reshape(tensor.shape)
        tensors[name] = tensor if kept else Quantized(numbers, Format.Q8_0)
    write_gguf(path, file.metadata, tensors, types=file.metadata.types)
