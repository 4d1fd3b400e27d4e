"""The oracle's adapters: the same logits as with merged weights."""

import numpy as np
import pytest

from stretto.backends.batch import Mix
from stretto.backends.reference import ReferenceBackend
from stretto.cache.cells import Cells
from stretto.weights.adapters import read_adapter
from tiny_adapters import matrices, merged_file, random_pairs, target, write_adapter
from tiny_models import N_CELLS, text_batch, text_logits, tiny_backend, tiny_spec

TOKENS = [5, 17, 9, 33, 2, 40]
ONE, BOTH = Mix((("one", 1.0),), "1"), Mix((("one", 0.7), ("two", -0.5)), "2")


def adapted_logits(backend, tokens, mix):
    batch = text_batch(tokens)
    batch.adapt(0, mix)
    batch.place(Cells(backend.n_cells))
    return backend.forward(batch)


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3", "phi3-long", "glm4", "starcoder2", "command-r"])
def test_an_adapter_is_the_merged_model(name, tmp_path):
    backend, pairs = tiny_backend(name), random_pairs(matrices(name))
    backend.load_adapter("one", read_adapter(write_adapter(tmp_path / "a.gguf", name, pairs), target(name)))
    merged = ReferenceBackend(merged_file(tmp_path / "m.gguf", name, (pairs, 1.0)), tiny_spec(name), N_CELLS)
    expected = text_logits(merged, TOKENS)
    found = adapted_logits(backend, TOKENS, ONE)
    assert np.abs(found - expected).max() < 2e-4 * np.abs(expected).max()
    assert np.abs(text_logits(backend, TOKENS) - expected).max() > 0.1


def test_two_adapters_add_up_by_their_scales(tmp_path):
    backend = tiny_backend("llama")
    one, two = (random_pairs(matrices("llama"), seed=seed, size=0.2) for seed in (1, 2))
    for label, pairs in (("one", one), ("two", two)):
        path = write_adapter(tmp_path / f"{label}.gguf", "llama", pairs)
        backend.load_adapter(label, read_adapter(path, target("llama")))
    file = merged_file(tmp_path / "m.gguf", "llama", (one, 0.7), (two, -0.5))
    expected = text_logits(ReferenceBackend(file, tiny_spec("llama"), N_CELLS), TOKENS)
    assert np.abs(adapted_logits(backend, TOKENS, BOTH) - expected).max() < 2e-4 * np.abs(expected).max()


def test_rows_without_an_adapter_keep_their_bits(tmp_path):
    backend = tiny_backend("llama")
    path = write_adapter(tmp_path / "a.gguf", "llama")
    backend.load_adapter("one", read_adapter(path, target("llama")))
    plain = text_logits(backend, TOKENS)
    batch = text_batch(TOKENS)
    for token, place in zip(TOKENS, range(len(TOKENS)), strict=True):
        batch.add(token, place, (1,), logits=True)
    batch.adapt(len(TOKENS), ONE)
    batch.place(Cells(backend.n_cells))
    rows = backend.forward(batch)
    assert np.allclose(rows[: len(TOKENS)], plain, atol=1e-5)  # NumPy's products depend on the batch
    assert np.allclose(rows[len(TOKENS) :], adapted_logits(backend, TOKENS, ONE), atol=1e-4)
