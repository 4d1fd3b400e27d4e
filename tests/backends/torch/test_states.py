"""States of recurrent layers in slots of the torch backend: kept apart, copied, saved, exchanged."""

import numpy as np
import pytest

from stretto.backends.batch import Batch
from stretto.backends.native import NativeBackend
from stretto.cache.cells import Cells
from tiny_models import answer, text_batch, tiny_file, tiny_spec
from torch_backends import RECURRENT, in_pieces, near, not_interpreted, run, same, torch_backend

pytestmark = not_interpreted

N = 20


@pytest.fixture(params=RECURRENT)
def name(request):
    return request.param


@pytest.fixture
def backend(name):
    return torch_backend(name, n_slots=5)


@pytest.fixture
def tokens(name):
    return answer(name, "tokens.0").tolist()[: N + 8]


def slots(*numbers):
    return np.array(numbers, np.int32)


def continued(backend, cells, tokens, slot, sequence=0):
    """The logits of the rest of a text, with its state in a slot."""
    return run(backend, cells, text_batch(tokens[N:], N, [sequence]), [slot] * (len(tokens) - N))


def begun(backend, tokens, slot):
    """The cells of a text's beginning, whose state is in a slot now."""
    cells = Cells(backend.n_cells)
    run(backend, cells, text_batch(tokens[:N]), [slot] * N)
    return cells


@pytest.fixture
def whole(name, tokens):
    return in_pieces(torch_backend(name), tokens, [len(tokens)])[N:]


def test_rows_of_two_texts_in_turn(name, backend):
    texts = [answer(name, f"tokens.{i}").tolist()[:12] for i in range(2)]
    batch = Batch()
    for position in range(12):
        for sequence, text in enumerate(texts):
            batch.add(text[position], position, [sequence], logits=True)
    found = run(backend, Cells(64), batch, [3, 1] * 12)
    for i, text in enumerate(texts):
        same(found[i::2], in_pieces(torch_backend(name), text, [12]))


def test_a_copied_state_goes_on_as_the_first(backend, tokens, whole):
    cells = begun(backend, tokens, 2)
    backend.copy_slots(slots(2, 2), slots(0, 4))
    cells.copy(0, 1)
    same(continued(backend, cells, tokens, 4, 1), whole)
    same(continued(backend, cells, tokens, 2), whole)


def test_a_saved_state_goes_on_as_before(backend, tokens, whole):
    cells = begun(backend, tokens, 1)
    data = backend.read_slots(slots(1, 0))
    assert data.shape == (2, backend.slot_bytes)
    assert not data[1].any()
    begun(backend, [5] * N, 1)
    cells = begun(backend, tokens, 3)
    backend.write_slots(slots(1), data[:1])
    same(continued(backend, cells, tokens, 1), whole)


def test_a_cleared_state_is_that_of_no_tokens(name, backend, tokens):
    begun(backend, tokens, 1)
    backend.clear_slots(slots(1))
    same(in_pieces(backend, tokens[:8], [8], slot=1), in_pieces(torch_backend(name), tokens[:8], [8]))


def test_states_are_exchanged_with_the_native_backend_or_refused_by_name(name, backend, tokens, whole):
    native = NativeBackend(tiny_file(name), tiny_spec(name), 64, 1, "f32", n_slots=2, precision="high")
    native.clear_slots(slots(0, 1))
    if native.slot_layout != backend.slot_layout:
        assert backend.slot_layout.startswith("torch")  # so that a saved sequence says whose it is
        return
    theirs, cells = begun(native, tokens, 0), begun(backend, [1] * N, 1)
    backend.write_slots(slots(1), native.read_slots(slots(0)))
    backend.write_cells(cells.view(0), native.read_cells(theirs.view(0)))
    near(continued(backend, cells, tokens, 1), whole, 0.02)
