"""Cells of the native backend whose layers differ, share or compress K and V: copied, moved, saved."""

import numpy as np
import pytest

from stretto.backends.native import NativeBackend
from stretto.cache.cells import Cells
from tiny_models import ALL, answer, text_batch, text_logits, tiny_backend, tiny_file, tiny_spec

KINDS = [
    "deepseek3",
    "deepseek2-lite-old",
    "glm-dsa",
    "gemma4",
    "gemma4-e",
    "gemma3n",
    "gpt-oss",
    "hunyuan-dense",
]
# Norms after the rope have weights for each number of a pair, so scores depend on more than distances.
UNSHIFTABLE = ["hunyuan-dense"]
N_CELLS = 64
TOLERANCE = 1e-3  # of logits with about unit variance, after keys were rotated


def native(name, kv="f32"):
    return NativeBackend(tiny_file(name), tiny_spec(name), N_CELLS, 2, kv)


def run(backend, cells, batch):
    batch.place(cells)
    return backend.forward(batch)


@pytest.fixture(params=KINDS)
def name(request):
    return request.param


@pytest.fixture
def backend(name):
    return native(name)


@pytest.fixture
def cells():
    return Cells(N_CELLS)


@pytest.fixture
def tokens(name):
    return answer(name, "tokens.0").tolist()[:30]


@pytest.fixture
def whole(name, tokens):
    return text_logits(native(name), tokens)


def test_saved_cells_go_on_with_the_same_bits(name, backend, cells, tokens, whole):
    run(backend, cells, text_batch(tokens[:20]))
    data = backend.read_cells(cells.view(0))
    assert data.shape == (20, backend.cell_bytes)
    other = native(name)
    run(other, restored := Cells(N_CELLS), text_batch([1] * 20))
    other.write_cells(restored.view(0), data)
    assert (run(other, restored, text_batch(tokens[20:], 20)) == whole[20:]).all()


def test_copied_cells_go_on_with_the_same_bits(backend, cells, tokens, whole):
    run(backend, cells, text_batch(tokens[:20]))
    cells.copy(0, 1)
    backend.copy_cells(*cells.unshare(1))
    cells.remove(0)
    run(backend, cells, text_batch([5] * 20, 0, [2]))  # what 0 had is written over
    assert (run(backend, cells, text_batch(tokens[20:], 20, [1])) == whole[20:]).all()


@pytest.mark.parametrize("name", [name for name in KINDS if name not in UNSHIFTABLE])
def test_a_shifted_sequence_goes_on_as_before(backend, cells, tokens, whole):
    run(backend, cells, text_batch(tokens[:20], 40))
    backend.rotate_cells(cells.shift(0, 0, None, -40), -40)
    np.testing.assert_allclose(
        run(backend, cells, text_batch(tokens[20:], 20)), whole[20:], rtol=0, atol=TOLERANCE
    )


def test_rotated_keys_of_the_first_layer_are_those_of_the_new_positions(name, backend, cells, tokens):
    n_bytes = 4 * int(np.prod(backend.spec.layers[0].kv))
    run(backend, cells, text_batch(tokens, 40))
    moved = cells.shift(0, 0, None, -37)
    backend.rotate_cells(moved, -37)
    other = native(name)
    run(other, placed := Cells(N_CELLS), text_batch(tokens, 3))
    keys, expected = (
        backend.read_cells(cells.view(0))[:, :n_bytes],
        other.read_cells(placed.view(0))[:, :n_bytes],
    )
    np.testing.assert_allclose(
        np.ascontiguousarray(keys).view(np.float32),
        np.ascontiguousarray(expected).view(np.float32),
        rtol=0,
        atol=1e-4,
    )


@pytest.mark.parametrize("name", ALL)
def test_a_cell_has_the_bytes_that_the_spec_says(name):
    spec = tiny_spec(name)
    assert native(name).cell_bytes == 4 * spec.kv_floats == tiny_backend(name).cell_bytes
    assert native(name, "f16").cell_bytes == 2 * spec.kv_floats


def test_compressed_cells_hold_no_values():
    spec = tiny_spec("deepseek3")
    mixer = spec.layers[0].mixer
    assert spec.kv_floats == spec.n_layer * (mixer.rank + mixer.rope_size)


def test_a_token_reads_compressed_cells_once_and_shared_ones_in_every_layer():
    spec = tiny_spec("deepseek3")
    assert spec.kv_reads == [(1, spec.layers[0].mixer.rank + spec.layers[0].mixer.rope_size, None)] * 2
    spec = tiny_spec("gemma4-e")
    assert len(spec.kv_reads) == 2 * spec.n_layer > len(spec.planes)
