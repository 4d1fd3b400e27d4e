"""Tiny models of all architectures with quantised weights: near the reference, the same bits any way."""

import numpy as np
import pytest

from stretto import _native
from stretto.backends.native import NativeBackend
from stretto.backends.reference import ReferenceBackend
from stretto.cache.cells import Cells
from stretto.models import read_spec
from stretto.weights.formats import Format
from stretto.weights.gguf import GGUF
from stretto.weights.writer import Quantized, write_gguf
from tiny_models import ALL, NAMES, answer, in_slots, text_batch, text_logits, tiny_file

pytestmark = pytest.mark.golden

CASES = [name for name in ALL if name not in NAMES]
# Logits have about unit variance; activations have 8 bits, or 16. Rounding grows with the layers.
DISTANCE = {"standard": 0.12, "high": 0.01}


@pytest.fixture(scope="module", params=CASES)
def quantized(request, tmp_path_factory):
    """(name, file): a tiny model whose matrices are in Q8_0 where their rows are whole blocks."""
    file, path = tiny_file(request.param), tmp_path_factory.mktemp("models") / "quantized.gguf"
    tensors = {}
    for name, tensor in file.tensors.items():
        small = len(tensor.shape) < 2 or tensor.shape[-1] % 32 or "conv" in name or name.endswith(".bias")
        numbers = tensor.dequantize().reshape(tensor.shape)
        tensors[name] = tensor if small or "gate_inp" in name else Quantized(numbers, Format.Q8_0)
    write_gguf(path, file.metadata, tensors, types=file.metadata.types)
    return request.param, GGUF(path)


def native(file, threads=2, **options):
    backend = NativeBackend(file, read_spec(file, 64), 64, threads, "f32", n_slots=2, **options)
    backend.clear_slots(np.arange(backend.n_slots, dtype=np.int32))
    return backend


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kernels", _native.kernel_names())
@pytest.mark.parametrize("precision", DISTANCE)
def test_near_the_reference(quantized, kernels, precision, monkeypatch):
    monkeypatch.setenv("STRETTO_KERNELS", kernels)
    name, file = quantized
    tokens = answer(name, "tokens.1")
    exact = text_logits(ReferenceBackend(file, read_spec(file, 64), 64), tokens)
    found = text_logits(native(file, precision=precision), tokens)
    distance = np.abs(found - exact).mean(axis=1) / max(1.0, exact.std())
    # The median of the tokens: one that gets another expert may be far away.
    assert np.median(distance) < DISTANCE[precision] * max(1.0, read_spec(file).n_layer / 10)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("kernels", _native.kernel_names())
@pytest.mark.parametrize("precision", DISTANCE)
def test_the_same_bits_in_chunks(quantized, kernels, precision, monkeypatch):
    monkeypatch.setenv("STRETTO_KERNELS", kernels)
    name, file = quantized
    tokens = answer(name, "tokens.1").tolist()
    whole = text_logits(native(file, 1, precision=precision), tokens)
    for sizes in ([1] * 12, [5, 1, 20, 2]):
        backend, cells, at = native(file, precision=precision), Cells(64), 0
        for size in sizes:
            batch = text_batch(tokens[at : at + size], at)
            batch.place(cells)
            in_slots(batch, [1] * size)
            assert (backend.forward(batch) == whole[at : at + size]).all()
            at += size
