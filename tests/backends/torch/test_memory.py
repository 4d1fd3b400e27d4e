"""How many cells fit on a device, and errors that say so in numbers; no GPU is asked."""

from dataclasses import replace

import pytest

from stretto.backends.torch import memory
from stretto.backends.torch.memory import (
    CONTEXTS,
    MAX_CELLS,
    MIN_CELLS,
    NUMBER_BYTES,
    VIEW_BYTES,
    Need,
    choose_cells,
    device_memory,
    find_room,
)
from stretto.errors import CacheFull, ModelError
from tiny_models import tiny_file, tiny_spec

GB = 10**9
NEED = Need(16 * GB, 131_072, 0, 2 * GB, numbers=8 * GB, context_length=8192)


def test_given_cells_that_fit_are_taken():
    assert choose_cells(8192, NEED, 140 * GB) == 8192


def test_auto_takes_what_is_free_and_leaves_a_share():
    cells = choose_cells("auto", NEED, 28 * GB)
    assert 0.8 * 10 * GB < cells * NEED.cell < 10 * GB


def test_auto_has_room_for_so_many_contexts_and_no_more():
    assert choose_cells("auto", NEED, 10_000 * GB) == CONTEXTS * 8192
    assert choose_cells("auto", replace(NEED, cell=1, context_length=1 << 20), 10_000 * GB) == MAX_CELLS


def test_cells_that_do_not_fit_say_how_many_would():
    with pytest.raises(CacheFull) as caught:
        choose_cells(100_000, NEED, 20 * GB)
    fit = 2 * GB // NEED.cell
    assert (caught.value.n_needed, caught.value.n_free) == (100_000, fit)
    assert f"{fit:,} fit" in str(caught.value)
    assert "13.1 GB" in str(caught.value)
    assert choose_cells(fit, NEED, 20 * GB) == fit


@pytest.mark.parametrize(
    ("free", "words"), [(12, "in Q8_0 they would take 8.5 GB"), (7, "in Q4_K"), (3, "0.7 GB")]
)
def test_weights_that_do_not_fit_say_what_would(free, words):
    with pytest.raises(ModelError) as caught:
        choose_cells("auto", NEED, free * GB)
    assert "16.0 GB" in str(caught.value)
    assert words in str(caught.value)
    assert "device='cpu'" in str(caught.value)


def test_a_small_context_needs_few_cells():
    small = replace(NEED, context_length=100)
    assert choose_cells("auto", small, small.fixed + 200 * small.cell) >= 100
    assert MIN_CELLS > 200


@pytest.mark.parametrize("kv", NUMBER_BYTES)
def test_a_model_needs_its_weights_and_cells(kv):
    file, spec = tiny_file("llama"), tiny_spec("llama")
    need = Need.of(file, spec, kv=kv)
    stored = sum(tensor.nbytes for tensor in file.tensors.values())
    assert 0.4 * stored < need.weights < 2.1 * stored
    assert need.cell == VIEW_BYTES + int(spec.kv_floats * NUMBER_BYTES[kv])
    assert need.states == 0
    assert Need.of(file, spec, wide=True).weights > need.weights


def test_states_of_recurrent_layers_count():
    need = Need.of(tiny_file("lfm2"), tiny_spec("lfm2"), n_slots=10)
    assert need.states == 40 * tiny_spec("lfm2").state_floats > 0


@pytest.mark.parametrize("cells", [48, "auto"])
def test_the_cells_of_a_model_that_is_opened(cells, monkeypatch):
    asked = []
    monkeypatch.setattr(memory, "free_bytes", lambda device: asked.append(device) or 10 * GB)
    spec = tiny_spec("llama")
    fit = choose_cells(cells, Need.of(tiny_file("llama"), spec), find_room("cuda"))
    assert fit == (cells if cells == 48 else max(MIN_CELLS, CONTEXTS * spec.context_length))
    assert asked == ["cuda"]


def test_an_image_encoder_has_its_share(monkeypatch):
    monkeypatch.setattr(memory, "free_bytes", lambda device: 10 * GB)
    file, spec = tiny_file("llama"), replace(tiny_spec("llama"), context_length=1 << 20)
    need = Need.of(file, spec)
    cells = [choose_cells("auto", need, find_room("cuda", beside)) for beside in (0, 5 * GB)]
    assert MIN_CELLS < cells[1] < 0.6 * cells[0]


def test_torch_running_out_becomes_an_error_with_a_remedy():
    torch = pytest.importorskip("torch")
    with (
        pytest.raises(ModelError, match=r"while running 3 rows.*fewer cells"),
        device_memory("running 3 rows", "cpu"),
    ):
        raise torch.OutOfMemoryError("CUDA out of memory")
