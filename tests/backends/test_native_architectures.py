"""Tiny random models of the architectures in the native backend: near transformers, the same bits any way."""

import numpy as np
import pytest

from stretto import _native
from stretto.backends.native import NativeBackend
from stretto.cache.cells import Cells
from tiny_models import ALL, NAMES, answer, in_slots, text_batch, text_logits, tiny_file, tiny_spec

pytestmark = pytest.mark.golden

CASES = [name for name in ALL if name not in NAMES]

# Of logits with about unit variance, with K and V as half floats or in float32; rounding grows with layers.
NATIVE = {"f16": 0.03, "f32": 2e-3}


def native(name, threads=2, kv="f16", n_cells=64, **options):
    backend = NativeBackend(tiny_file(name), tiny_spec(name), n_cells, threads, kv, n_slots=3, **options)
    backend.clear_slots(np.arange(backend.n_slots, dtype=np.int32))
    return backend


@pytest.mark.parametrize("kernels", _native.kernel_names())
@pytest.mark.parametrize("kv", NATIVE)
@pytest.mark.parametrize("name", CASES)
def test_native_logits(name, kv, kernels, monkeypatch):
    monkeypatch.setenv("STRETTO_KERNELS", kernels)
    expected = answer(name, "logits.0")
    logits = text_logits(native(name, kv=kv), answer(name, "tokens.0"))
    layers = max(1.0, tiny_spec(name).n_layer / 10)
    assert np.abs(logits - expected).max() < NATIVE[kv] * layers * max(1.0, expected.std())


@pytest.mark.one_in(4)
@pytest.mark.parametrize("kernels", _native.kernel_names())
@pytest.mark.parametrize("name", CASES)
def test_the_same_bits_whatever_the_batch(name, kernels, monkeypatch):
    """Token by token alone, in chunks, beside another text, and with more threads: all the same."""
    monkeypatch.setenv("STRETTO_KERNELS", kernels)
    tokens, other = answer(name, "tokens.0").tolist(), answer(name, "tokens.1").tolist()
    whole = text_logits(native(name, 1), tokens)
    for threads in (2, 3):
        assert (text_logits(native(name, threads), tokens) == whole).all()
    for sizes, threads in (([1] * len(tokens), 4), ([7, 1, 16, 24], 2)):
        backend, cells, at = native(name, threads), Cells(64), 0
        for size in sizes:
            batch = text_batch(tokens[at : at + size], at)
            batch.place(cells)
            in_slots(batch, [1] * size)
            assert (backend.forward(batch) == whole[at : at + size]).all()
            at += size
    backend, cells = native(name, n_cells=128), Cells(128)
    batch = text_batch(other[:5], 0, [1])
    for position, token in enumerate(tokens):
        batch.add(token, position, [0], logits=True)
    batch.place(cells)
    in_slots(batch, [2] * 5 + [0] * len(tokens))
    assert (backend.forward(batch)[5:] == whole).all()


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", CASES)
def test_the_same_bits_without_packing(name):
    tokens = answer(name, "tokens.1")
    assert (text_logits(native(name, repack=False), tokens) == text_logits(native(name), tokens)).all()
