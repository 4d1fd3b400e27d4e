"""Cells whose layers differ, share or compress K and V: computed in pieces, copied, moved, saved."""

import numpy as np
import pytest

from stretto.backends.batch import Batch
from stretto.cache.cells import Cells
from tiny_models import answer, text_batch, text_logits, tiny_backend

TOLERANCE = 1e-4
NAMES = ["deepseek3", "deepseek2-lite-old", "gemma4", "gemma4-e", "glm-dsa", "gpt-oss", "minicpm3"]
N_CELLS = 64


@pytest.fixture(params=NAMES)
def name(request):
    return request.param


@pytest.fixture
def backend(name):
    return tiny_backend(name)


@pytest.fixture
def cells():
    return Cells(N_CELLS)


@pytest.fixture
def tokens(name):
    return answer(name, "tokens.0").tolist()


def run(backend, cells, batch):
    batch.place(cells)
    return backend.forward(batch)


def near(found, expected):
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)


def test_chunks_are_the_whole(name, backend, cells, tokens):
    rows = [run(backend, cells, text_batch(tokens[start : start + 7], start)) for start in range(0, 48, 7)]
    near(np.concatenate(rows), answer(name, "logits.0"))


def test_two_sequences_in_one_batch(name, tokens):
    other = answer(name, "tokens.1").tolist()
    batch = Batch()
    for i, token in enumerate(other):
        batch.add(tokens[i], i, [0], logits=True)
        batch.add(token, i, [1], logits=True)
    rows = run(tiny_backend(name, n_cells=80), Cells(80), batch)
    near(rows[::2], answer(name, "logits.0")[: len(other)])
    near(rows[1::2], answer(name, "logits.1"))


def test_saved_cells_go_on_as_before(name, backend, cells, tokens):
    run(backend, cells, text_batch(tokens[:20]))
    data = backend.read_cells(cells.view(0))
    assert data.shape == (20, backend.cell_bytes)
    other = tiny_backend(name)
    run(other, restored := Cells(N_CELLS), text_batch([1] * 20))
    other.write_cells(restored.view(0), data)
    near(run(other, restored, text_batch(tokens[20:30], 20)), answer(name, "logits.0")[20:30])


def test_copied_cells_go_on_as_before(name, backend, cells, tokens):
    run(backend, cells, text_batch(tokens[:20]))
    cells.copy(0, 1)
    backend.copy_cells(*cells.unshare(1))
    cells.remove(0)
    run(backend, cells, text_batch([5] * 20, 0, [2]))  # what 0 had is written over
    near(run(backend, cells, text_batch(tokens[20:30], 20, [1])), answer(name, "logits.0")[20:30])


def test_a_shifted_sequence_goes_on_as_before(name, backend, cells, tokens):
    run(backend, cells, text_batch(tokens[:20], 40))
    backend.rotate_cells(cells.shift(0, 0, None, -40), -40)
    near(run(backend, cells, text_batch(tokens[20:30], 20)), answer(name, "logits.0")[20:30])


def test_a_probed_row_sums_to_one_in_every_layer(name, backend, cells, tokens):
    batch = text_batch(tokens[:20])
    batch.place(cells)
    attention = backend.compute(batch, attention=True).attention
    assert len(attention) == backend.spec.n_layer
    for layer, weights in zip(backend.spec.layers, attention, strict=True):
        assert weights.shape == (layer.mixer.n_head, 20, N_CELLS)
        sums = weights.sum(axis=2)
        # A sink takes its share.
        assert (sums < 1).all() if name == "gpt-oss" else np.allclose(sums, 1, atol=1e-6)


@pytest.mark.parametrize("name", ["gemma4", "gemma4-e", "deepseek3"])
def test_vectors_are_tokens_with_row_0_of_the_table_for_each_layer(name, backend, cells):
    tokens = [5, 0, 9, 0, 0, 7]
    embeddings = backend.weights["token_embd.weight"] * np.float32(backend.spec.embedding_scale)
    batch = Batch()
    for i, token in enumerate(tokens):
        if token:
            batch.add(token, i, [0], logits=True)
        else:
            batch.add_vector(embeddings[0], i, [0], logits=True)
    near(run(backend, cells, batch), text_logits(tiny_backend(name), tokens))
