"""Adapters of quantised models: narrow matrices of bytes, with the same bits in every batch and chunk."""

import numpy as np
import pytest

from stretto import _native
from stretto.backends.batch import Mix
from stretto.backends.native import NativeBackend
from stretto.backends.reference import ReferenceBackend
from stretto.cache.cells import Cells
from stretto.hardware import kernel_sets
from stretto.weights.adapters import read_adapter
from stretto.weights.formats import Format
from stretto.weights.gguf import GGUF
from stretto.weights.writer import Quantized, write_gguf
from tiny_adapters import matrices, random_pairs, target, write_adapter
from tiny_models import text_batch, tiny_file, tiny_spec

N_CELLS = 512
MIXES = [None, Mix((("one", 1.0),), "1"), Mix((("two", 1.0),), "2"), Mix((("one", 0.6), ("two", -0.4)), "12")]


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """The tiny llama with its matrices in Q8_0."""
    source, path = tiny_file("llama"), tmp_path_factory.mktemp("quantized") / "m.gguf"
    tensors = {
        name: Quantized(tensor.dequantize().reshape(tensor.shape), Format.Q8_0)
        if len(tensor.shape) == 2 and tensor.shape[1] % 32 == 0
        else tensor
        for name, tensor in source.tensors.items()
    }
    write_gguf(path, dict(source.metadata), tensors, types=source.metadata.types)
    return GGUF(path)


@pytest.fixture(scope="module")
def adapters(tmp_path_factory):
    """Two adapters, one of them with a rank that is no whole block."""
    folder = tmp_path_factory.mktemp("adapters")
    made = {}
    for seed, (name, rank) in enumerate((("one", 16), ("two", 40))):
        pairs = random_pairs(matrices("llama"), rank=rank, seed=seed, size=0.07)
        path = write_adapter(folder / f"{name}.gguf", "llama", pairs)
        made[name] = read_adapter(path, target("llama"))
    return made


def opened(backend, adapters):
    for name, lora in adapters.items():
        backend.load_adapter(name, lora)
    return backend


def native(file, adapters, threads=1, **options):
    return opened(
        NativeBackend(file, tiny_spec("llama", N_CELLS), N_CELLS, threads, "f32", **options), adapters
    )


def logits(backend, mix, tokens):
    batch = text_batch(tokens)
    batch.adapt(0, mix)
    batch.place(Cells(backend.n_cells))
    return backend.forward(batch)


def text(n, seed=0):
    return np.random.default_rng(seed).integers(2, 60, n).tolist()


@pytest.mark.parametrize("precision", ["standard", "high"])
def test_bytes_are_near_the_oracle(file, adapters, precision):
    oracle = opened(ReferenceBackend(file, tiny_spec("llama", N_CELLS), N_CELLS), adapters)
    ours = native(file, adapters, precision=precision)
    within = {"standard": 0.05, "high": 0.002}[precision]
    for mix in MIXES[1:]:
        expected = logits(oracle, mix, text(12))
        error = np.abs(logits(ours, mix, text(12)) - expected).max()
        assert error < within * np.abs(expected).max()
        assert np.abs(logits(oracle, None, text(12)) - expected).max() > 4 * error


@pytest.mark.parametrize("kernel", _native.kernel_names())
@pytest.mark.parametrize("repack", [True, False])
def test_a_row_has_the_same_bits_in_every_batch(file, adapters, kernel, repack, monkeypatch):
    monkeypatch.setattr(kernel_sets, "select", lambda: kernel)
    alone = native(file, adapters, repack=repack)
    mixed = native(file, adapters, 2, repack=repack)
    # Long prompts, short ones and single tokens by turns, so that runs of rows begin and end anywhere.
    lengths, order = [1, 70, 1, 1, 5, 53, 20, 1, 3, 49], [1, 0, 2, 3, 1, 3, 1, 1, 2, 2]
    batch = text_batch([])
    for sequence, (length, which) in enumerate(zip(lengths, order, strict=True)):
        first = len(batch)
        for place, token in enumerate(text(length, sequence)):
            batch.add(token, place, (sequence,), logits=True)
        batch.adapt(first, MIXES[which])
    batch.place(Cells(N_CELLS))
    rows = np.split(mixed.forward(batch), np.cumsum(lengths)[:-1])
    for sequence, (length, which) in enumerate(zip(lengths, order, strict=True)):
        assert np.array_equal(rows[sequence], logits(alone, MIXES[which], text(length, sequence)))


def test_tokens_one_by_one_have_the_bits_of_a_whole_prompt(file, adapters):
    backend, tokens = native(file, adapters, 2), text(60)
    whole, cells = logits(backend, MIXES[3], tokens), Cells(N_CELLS)
    for place, token in enumerate(tokens):
        batch = text_batch([token], place)
        batch.adapt(0, MIXES[3])
        batch.place(cells)
        assert np.array_equal(backend.forward(batch)[0], whole[place])
