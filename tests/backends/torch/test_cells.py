"""Cells of the torch backend: saved, copied, rotated, and exchanged with the native backend."""

import numpy as np
import pytest

from stretto.backends.native import NativeBackend
from stretto.backends.reference import ReferenceBackend
from stretto.cache.cells import Cells
from tiny_models import answer, text_batch, text_logits, tiny_file, tiny_spec
from torch_backends import MODELS, near, not_interpreted, run, same, torch_backend

pytestmark = not_interpreted

ATTENDING = [name for name in MODELS if not tiny_spec(name).recurrent]
# Norms after the rope have weights for each number of a pair, and queries are scaled by their positions.
UNSHIFTABLE = ["hunyuan-dense", "mistral3"]
KINDS = ["f32", "f16", "q8"]
N = 20


@pytest.fixture(params=ATTENDING)
def name(request):
    return request.param


@pytest.fixture
def tokens(name):
    return answer(name, "tokens.0").tolist()[: N + 8]


@pytest.fixture
def whole(name, tokens):
    return text_logits(torch_backend(name), tokens)


def begun(backend, tokens):
    """The cells of a text's beginning."""
    cells = Cells(backend.n_cells)
    run(backend, cells, text_batch(tokens[:N]))
    return cells


def continued(backend, cells, tokens, sequence=0):
    return run(backend, cells, text_batch(tokens[N:], N, [sequence]))


@pytest.mark.parametrize("kv", KINDS)
def test_saved_cells_go_on_as_before(name, tokens, kv):
    backend, other = (torch_backend(name, kv=kv) for _ in range(2))
    cells, restored = begun(backend, tokens), begun(other, [1] * N)
    data = backend.read_cells(cells.view(0))
    assert data.dtype == np.uint8
    assert data.shape == (N, backend.cell_bytes)
    other.write_cells(restored.view(0), data)
    assert (other.read_cells(restored.view(0)) == data).all()
    same(continued(other, restored, tokens), continued(backend, cells, tokens))


def test_copied_cells_go_on_as_before(name, tokens, whole):
    backend = torch_backend(name)
    cells = begun(backend, tokens)
    cells.copy(0, 1)
    backend.copy_cells(*cells.unshare(1))
    cells.remove(0)
    run(backend, cells, text_batch([5] * N, 0, [2]))  # what 0 had is written over
    same(continued(backend, cells, tokens, 1), whole[N:])


def test_a_shifted_sequence_goes_on_as_before(name, tokens, whole):
    if name in UNSHIFTABLE:
        pytest.skip("its keys cannot be shifted exactly")
    backend, cells = torch_backend(name), Cells(64)
    run(backend, cells, text_batch(tokens[:N], 40))
    backend.rotate_cells(cells.shift(0, 0, None, -40), -40)
    near(continued(backend, cells, tokens), whole[N:], 1e-3)


def test_rotated_keys_are_those_of_the_reference(name, tokens):
    found = []
    for backend in (torch_backend(name), ReferenceBackend(tiny_file(name), tiny_spec(name), 64)):
        cells = begun(backend, tokens)
        moved = cells.view(0)[3:9].copy()
        backend.rotate_cells(moved, 17)
        found.append(first_keys(backend, moved))
    np.testing.assert_allclose(*found, rtol=0, atol=2e-4)


def first_keys(backend, cells):
    """float32[n, numbers]: the keys of the first layer, whose place is first in any layout."""
    n_bytes = 4 * int(np.prod(backend.spec.layers[0].kv))
    return np.ascontiguousarray(backend.read_cells(cells)[:, :n_bytes]).view(np.float32)


@pytest.mark.parametrize("kv", KINDS)
def test_cells_have_the_layout_of_the_native_backend(name, tokens, kv):
    """Its files are read here, and ours there: the next logits are near either way."""
    ours = torch_backend(name, kv=kv)
    native = NativeBackend(tiny_file(name), tiny_spec(name), 64, 1, kv, precision="high")
    assert ours.cell_bytes == native.cell_bytes
    assert ours.cell_layout == native.cell_layout
    cells = [begun(ours, tokens), begun(native, tokens)]
    data = [backend.read_cells(each.view(0)) for backend, each in zip((ours, native), cells, strict=True)]
    expected = text_logits(ReferenceBackend(tiny_file(name), tiny_spec(name), 64), tokens)[N:]
    tolerance = 0.4 if kv == "q8" else 0.02
    ours.write_cells(cells[0].view(0), data[1])
    near(continued(ours, cells[0], tokens), expected, tolerance)
    native.write_cells(cells[1].view(0), data[0])
    near(continued(native, cells[1], tokens), expected, tolerance)
