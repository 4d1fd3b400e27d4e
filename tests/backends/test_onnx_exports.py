"""Exports of our own, run by the ONNX backend, against the reference backend on the same file."""

from functools import cache

import numpy as np
import pytest

from stretto.backends.base import BackendOptions
from stretto.backends.batch import Batch
from stretto.cache.cells import Cells
from stretto.errors import ModelError, Unsupported

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

from stretto.backends.onnx import OnnxBackend, OnnxCellsBackend, open_onnx
from stretto.export.decoder import build
from stretto.weights.onnx.folder import find_folder
from tiny_models import tiny_backend, tiny_file, tiny_spec

N_CELLS = 64
TOLERANCE = 5e-5
NAMES = ("llama", "llama-llama3", "llama-yarn", "qwen2", "qwen3", "gemma2", "gemma3")
FORMS = ("gqa", "plain", "cells")
KINDS = {"gqa": OnnxBackend, "plain": OnnxBackend, "cells": OnnxCellsBackend}


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    @cache
    def opened(name, form):
        folder = tmp_path_factory.mktemp(f"{name}-{form}")
        model = build(tiny_file(name), tiny_spec(name, N_CELLS), "f32", form)
        (folder / "model.onnx").write_bytes(model.SerializeToString())
        return open_onnx(find_folder(folder), BackendOptions("cpu", N_CELLS, 1))

    def fresh(name, form):
        model = opened(name, form)
        return KINDS[form](model.session, model.graph, model.decoder, N_CELLS, 1)

    return fresh


class Pair:
    """An export and the reference, side by side."""

    def __init__(self, model, name):
        self.model, self.reference = model, tiny_backend(name, N_CELLS)
        self.cells, self.rng, self.worst = Cells(N_CELLS), np.random.default_rng(1), 0.0

    def go(self, rows):
        """Run rows of (position, sequences); False if that is `Unsupported`."""
        batch = Batch()
        for position, sequences in rows:
            token = int(self.rng.integers(0, self.model.spec.n_vocab))
            batch.add(token, position, sequences, logits=True)
        self.cells.hold()
        batch.place(self.cells)
        try:
            logits = self.model.forward(batch)
        except Unsupported:
            self.cells.rollback()
            return False
        self.cells.commit()
        self.worst = max(self.worst, float(np.abs(logits - self.reference.forward(batch)).max()))
        return True


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NAMES)
def test_texts_forks_and_batches_are_those_of_the_reference(exported, name, form):
    pair = Pair(exported(name, form), name)
    assert pair.go([(i, [0]) for i in range(12)])
    for i in (1, 2):
        pair.cells.copy(0, i)
    assert pair.go([(12, [0]), (12, [1]), (12, [2])])
    assert pair.go([(13, [1]), (14, [1]), (13, [0])])
    assert pair.go([(i, [3]) for i in range(5)])
    for step in range(3):
        assert pair.go([(14 + step, [0]), (15 + step, [1]), (13 + step, [2]), (5 + step, [3])])
    assert pair.worst <= TOLERANCE


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NAMES)
def test_edits_are_exact_or_unsupported(exported, name, form):
    pair, windowed = Pair(exported(name, form), name), "gemma" in name and form != "cells"
    pair.go([(i, [0]) for i in range(14)])
    pair.cells.copy(0, 1)
    pair.cells.remove(1, 9, 12)
    assert pair.go([(14, [1])]) is not windowed
    assert pair.go([(14, [0])])
    for i in (7, 8, 9):
        pair.cells.copy(0, i)
    assert pair.go([(15, [7]), (15, [8]), (15, [9])])
    for i in (7, 8, 9):
        pair.cells.copy(i, 0, 15, 16)
        pair.cells.remove(i)
    assert pair.go([(16, [0])]) is not windowed
    assert pair.go([(17, [0]), (17, [0])]) is (form == "cells")
    assert pair.worst <= TOLERANCE


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NAMES)
def test_moved_keys_are_those_of_the_reference(exported, name, form):
    pair = Pair(exported(name, form), name)
    assert pair.model.capabilities.shift
    pair.go([(i, [0]) for i in range(8)])
    cells = pair.cells.shift(0, 0, None, 5)
    pair.model.rotate_cells(cells, 5)
    pair.reference.rotate_cells(cells, 5)
    assert pair.go([(13, [0])])
    assert pair.worst <= TOLERANCE


def test_an_export_shares_its_buffers_where_its_heads_allow(exported):
    sizes = {name: tiny_spec(name).head_size for name in NAMES}
    assert any(size % 16 == 0 for size in sizes.values())
    for name, size in sizes.items():
        graph = exported(name, "gqa").graph
        assert graph.shares is (size % 16 == 0)
        assert graph.explicit
        assert not exported(name, "plain").graph.shares


def test_cells_can_be_read_and_written(exported):
    pair = Pair(exported("llama", "cells"), "llama")
    pair.go([(i, [0]) for i in range(6)])
    cells = pair.cells.view(0).copy()
    data = pair.model.read_cells(cells)
    assert data.shape == (6, pair.model.cell_bytes)
    new = np.arange(40, 46, dtype=np.int32)
    pair.model.write_cells(new, data)
    assert np.array_equal(pair.model.read_cells(new), data)
    pair.model.copy_cells(new, new + 10)
    assert np.array_equal(pair.model.read_cells(new + 10), data)


@pytest.mark.parametrize("form", FORMS)
def test_half_floats_keep_half_floats(tmp_path, form):
    model = build(tiny_file("llama"), tiny_spec("llama", N_CELLS), "f16", form)
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    half = open_onnx(find_folder(tmp_path), BackendOptions("cpu", N_CELLS, 1))
    pair = Pair(half, "llama")
    assert pair.go([(i, [0]) for i in range(12)])
    assert pair.go([(12, [0])])
    assert half.cell_layout.startswith("onnx float16")
    assert 0 < pair.worst < 0.05


def test_cells_without_their_heads_ask_for_another_export(tmp_path):
    model = build(tiny_file("llama"), tiny_spec("llama", N_CELLS), "f32", "cells")
    del model.metadata_props[:]
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match="in 0 heads; export the model again"):
        open_onnx(find_folder(tmp_path), BackendOptions("cpu", N_CELLS, 1))
