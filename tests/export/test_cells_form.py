"""The form `cells` against the reference backend: forks, holes, merges and tokens side by side are exact."""

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx_exports import Pools, tiny_session
from stretto.backends.batch import Batch
from stretto.cache.cells import Cells
from tiny_models import N_CELLS, tiny_backend, tiny_spec

TOLERANCE = 2e-5


class Both:
    """The same batches on the exported model and on the reference backend."""

    def __init__(self, name):
        self.cells = Cells(N_CELLS)
        self.exported, self.reference = Pools(tiny_session(name, "f32", "cells")), tiny_backend(name)
        self.random = np.random.default_rng(1)
        self.n_vocab = tiny_spec(name).n_vocab

    def run(self, *rows):
        """Rows of (position, sequences); returns the largest difference of their logits."""
        batch = Batch()
        for position, sequences in rows:
            batch.add(int(self.random.integers(self.n_vocab)), position, sequences, logits=True)
        batch.place(self.cells)
        return float(np.abs(self.exported.forward(batch) - self.reference.forward(batch)).max())


@pytest.fixture(params=["llama", "gemma2", "gemma3", "qwen3", "phi3-window"])
def both(request):
    found = Both(request.param)
    assert found.run(*((i, [0]) for i in range(12))) <= TOLERANCE
    return found


def test_forks_in_one_batch(both):
    both.cells.copy(0, 1)
    both.cells.copy(0, 2)
    assert both.run((12, [0]), (12, [1]), (12, [2])) <= TOLERANCE
    assert both.run((13, [2]), (13, [0]), (14, [0])) <= TOLERANCE


def test_a_hole_in_a_text(both):
    both.cells.copy(0, 1)
    both.cells.remove(1, 4, 8)
    assert both.run((12, [1]), (12, [0]), (13, [0])) <= TOLERANCE


def test_isolated_tokens_that_are_merged(both):
    for member in (7, 8, 9):
        both.cells.copy(0, member)
    assert both.run(*((12, [member]) for member in (7, 8, 9))) <= TOLERANCE
    for member in (7, 8, 9):
        both.cells.copy(member, 0, 12, 13)
        both.cells.remove(member, 0, N_CELLS)
    assert both.run((13, [0])) <= TOLERANCE


def test_tokens_that_see_each_other_at_one_position(both):
    assert both.run((12, [0]), (12, [0]), (12, [0])) <= TOLERANCE
    assert both.run((13, [0])) <= TOLERANCE


def test_a_token_in_several_texts(both):
    both.cells.copy(0, 1)
    assert both.run((12, [0, 1])) <= TOLERANCE
    assert both.run((13, [1]), (13, [0])) <= TOLERANCE
