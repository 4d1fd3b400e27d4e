"""Opening a model on the device: its cells, and errors when memory runs out."""

from dataclasses import replace

import pytest

from stretto.backends.base import BackendOptions
from stretto.backends.torch import open_torch
from stretto.errors import ModelError
from tiny_models import tiny_file, tiny_spec

torch = pytest.importorskip("torch")
OPTIONS = BackendOptions("cpu", 48, 1)


def test_cells_are_as_many_as_asked_for():
    for options in (OPTIONS, replace(OPTIONS, auto_cells=True)):
        backend = open_torch(tiny_file("llama"), tiny_spec("llama"), options)
        assert backend.n_cells == 48
        backend.close()


def test_memory_that_runs_out_while_loading_is_an_error_with_numbers(monkeypatch):
    def run_out(*args, **options):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("stretto.backends.torch.backend.DeviceCells", run_out)
    with pytest.raises(ModelError, match=r"ran out while loading .* with 48 cells"):
        open_torch(tiny_file("llama"), tiny_spec("llama"), OPTIONS)
