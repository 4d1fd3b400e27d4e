"""Memory that runs out and kernels that fail: errors that say so, and a model that goes on where it can."""

from types import SimpleNamespace

import numpy as np
import pytest

from stretto.cache.cells import Cells
from stretto.errors import CacheFull, InvalidRequest, ModelError, Unsupported
from tiny_models import answer, text_batch, tiny_file, tiny_spec
from torch_backends import DEVICE, in_pieces, not_interpreted, run, same, torch_backend

torch = pytest.importorskip("torch")
pytestmark = not_interpreted

FULL = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has …")
ILLEGAL = RuntimeError("CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be …")


@pytest.fixture
def backend():
    return torch_backend("llama")


@pytest.fixture
def tokens():
    return answer("llama", "tokens.0").tolist()[:12]


def failing(error):
    def fail(*args, **options):
        raise error

    return fail


def decoding(backend, cells, token, sequence=0):
    """A decode step of one sequence."""
    from stretto.backends.batch import Decoding

    return backend.forward(Decoding(cells, [token], [sequence]))[0].numpy()


def test_a_pass_without_memory_says_what_it_needs_and_the_next_one_runs(backend, tokens, monkeypatch):
    expected = in_pieces(backend, tokens, [12])
    forgotten = []
    monkeypatch.setattr(backend.planner, "forget", lambda: forgotten.append(True))
    with monkeypatch.context() as patch:
        patch.setattr(backend.decoder, "run", failing(FULL))
        with pytest.raises(CacheFull, match=r"running 12 tokens, which needs 2.50 GiB more.*fewer cells.*q8"):
            run(backend, Cells(64), text_batch(tokens))
    assert forgotten
    monkeypatch.undo()
    same(in_pieces(backend, tokens, [12]), expected)


def test_the_frames_of_a_failed_pass_hold_no_memory(backend, tokens, monkeypatch):
    made = []

    class Large:
        def __del__(self):
            made.append("freed")

    def fail(run):
        large = Large()  # noqa: F841
        raise FULL

    monkeypatch.setattr(backend.decoder, "run", fail)
    with pytest.raises(CacheFull):
        run(backend, Cells(64), text_batch(tokens))
    assert made == ["freed"]


def test_an_engine_gives_the_cells_of_a_failed_pass_back(monkeypatch):
    from stretto.engine.runner import Runner

    backend = torch_backend("llama")
    runner = Runner(backend)
    before = runner.cells.n_free
    with monkeypatch.context() as patch:
        patch.setattr(backend.decoder, "run", failing(FULL))
        with pytest.raises(CacheFull):
            runner.forward(text_batch([1, 2, 3]))
    assert runner.cells.n_free == before
    assert np.isfinite(runner.forward(text_batch([1, 2, 3]))).all()


@pytest.mark.parametrize("call", ["hidden", "project", "prepare", "copy_cells", "read_cells"])
def test_other_calls_say_so_too(backend, monkeypatch, call):
    monkeypatch.setattr(backend.decoder, "run", failing(FULL))
    monkeypatch.setattr(backend.decoder, "project", failing(FULL))
    monkeypatch.setattr(backend.sampler, "prepare", failing(FULL))
    for name in ("copy", "read"):
        monkeypatch.setattr(backend.memory, name, failing(FULL))
    batch = text_batch([1, 2])
    batch.place(Cells(64))
    cells = np.arange(2, dtype=np.int32)
    arguments = {
        "hidden": (batch,),
        "project": ("x", np.zeros((1, 4), np.float32)),
        "prepare": ([],),
        "copy_cells": (cells, cells),
        "read_cells": (cells,),
    }
    with pytest.raises(CacheFull, match="ran out while"):
        getattr(backend, call)(*arguments[call])


def test_a_kernel_that_fails_ends_the_model(backend, tokens, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(backend.decoder, "run", failing(ILLEGAL))
        with pytest.raises(ModelError, match=r"while running 12 tokens: CUDA error: an illegal.*start it"):
            run(backend, Cells(64), text_batch(tokens))
    with pytest.raises(ModelError, match=r"failed before \(CUDA error: an illegal"):
        run(backend, Cells(64), text_batch(tokens))


def test_errors_of_others_stay_what_they_are(backend, tokens, monkeypatch):
    monkeypatch.setattr(backend.decoder, "run", failing(RuntimeError("shapes do not match")))
    with pytest.raises(RuntimeError, match="shapes"):
        run(backend, Cells(64), text_batch(tokens))


def test_loading_without_memory_says_so(monkeypatch):
    from stretto.backends.base import BackendOptions
    from stretto.backends.torch import backend as module
    from stretto.backends.torch import open_torch

    monkeypatch.setattr(module, "DeviceCells", failing(FULL))
    with pytest.raises(ModelError, match=r"loading .* with 64 cells, which needs 2.50 GiB more"):
        open_torch(tiny_file("llama"), tiny_spec("llama"), BackendOptions("cpu", 64, 1))


@pytest.mark.parametrize("short", ["nothing is free", "the capture fails", "its end fails"])
def test_steps_run_without_a_graph_when_memory_is_short(backend, tokens, monkeypatch, short):
    from stretto.backends.torch import steps

    expected, cells = in_pieces(backend, tokens, [11, 1]), Cells(64)
    run(backend, cells, text_batch(tokens[:11]))
    tried = []

    def record(plan):
        tried.append(plan.key)
        try:
            raise FULL
        except RuntimeError:
            if short == "its end fails":
                raise RuntimeError("CUDA error: operation failed during capture")  # noqa: B904
            raise

    monkeypatch.setattr(steps, "has_room", lambda device, nbytes: short != "nothing is free")
    monkeypatch.setattr(backend.steps, "record", record)
    monkeypatch.setattr(backend.steps, "device", torch.device("cuda"))
    same(decoding(backend, cells, tokens[11]), expected[-1])
    decoding(backend, cells, 1)
    assert len(tried) == (short != "nothing is free")
    assert list(backend.steps.uncaptured.values()) == [steps.STEPS_UNCAPTURED - 1]
    backend.steps.clear()
    assert not backend.steps.uncaptured


@pytest.mark.parametrize("shape", [(2, 7), (1, None), (3, None)])
def test_cells_are_written_from_data_of_their_size_only(backend, shape):
    cells = np.arange(2, dtype=np.int32)
    before = backend.read_cells(cells)
    with pytest.raises(InvalidRequest, match=rf"uint8\[2, {backend.cell_bytes}\]"):
        backend.write_cells(cells, np.ones((shape[0], shape[1] or backend.cell_bytes), np.uint8))
    with pytest.raises(InvalidRequest, match="float32"):
        backend.write_cells(cells, before.view(np.float32))
    assert (backend.read_cells(cells) == before).all()


@pytest.mark.parametrize("cell", [-1, 64])
def test_cells_that_do_not_exist_are_not_written(backend, cell):
    with pytest.raises(InvalidRequest, match="cells must be from 0 to 63"):
        backend.write_cells(np.array([cell], np.int32), np.zeros((1, backend.cell_bytes), np.uint8))


def test_states_are_written_from_data_of_their_size_only():
    backend = torch_backend("lfm2")
    with pytest.raises(InvalidRequest, match=rf"uint8\[1, {backend.slot_bytes}\]"):
        backend.write_slots(np.zeros(1, np.int32), np.zeros((1, backend.slot_bytes + 4), np.uint8))
    with pytest.raises(InvalidRequest, match="slots must be from 0 to 2"):
        backend.write_slots(np.full(1, 3, np.int32), np.zeros((1, backend.slot_bytes), np.uint8))


def test_many_cells_are_read_and_written_in_pieces(backend, tokens, monkeypatch):
    from stretto.backends.torch import cells as module

    cells = Cells(64)
    run(backend, cells, text_batch(tokens))
    whole = backend.read_cells(cells.view(0))
    monkeypatch.setattr(module, "PIECE_BYTES", 5 * backend.cell_bytes)
    assert (backend.read_cells(cells.view(0)) == whole).all()
    others = np.arange(40, 52, dtype=np.int32)
    backend.write_cells(others, whole)
    assert (backend.read_cells(others) == whole).all()


def test_widened_formats_are_named_once_with_their_bytes():
    from stretto.backends.torch.weights import Weights

    weights = Weights(tiny_file("llama"), tiny_spec("llama"), torch.device(DEVICE), torch.bfloat16, 64)
    weights.warn_of_widened()  # says nothing
    for _ in range(2):
        weights.count(SimpleNamespace(nbytes=8_000_000, widened={"IQ4_NL": 5_000_000}))
    assert weights.nbytes == 16_000_000
    with pytest.warns(UserWarning, match=r"IQ4_NL \(10.0 MB\) are widened to 16 bits.*Q4_K"):
        weights.warn_of_widened()


@pytest.mark.parametrize(("capability", "refused"), [((8, 0), True), ((8, 9), False), ((9, 0), False)])
def test_fp8_needs_a_gpu_that_has_it(monkeypatch, capability, refused):
    from stretto.backends.torch.device import check_cache_type

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    gpu = torch.device("cuda")
    check_cache_type("q8", gpu)
    if not refused:
        check_cache_type("fp8", gpu)
        return
    with pytest.raises(Unsupported, match=r"needs compute capability 8.9.*has 8.0.*q8.*cpu"):
        check_cache_type("fp8", gpu)
