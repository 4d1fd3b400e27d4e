"""Tiny ONNX decoders of tests/data/onnx, and a plain way to compute what they should give."""

from functools import cache
from pathlib import Path

import numpy as np

from stretto.backends.base import BackendOptions
from stretto.backends.onnx import OnnxBackend, open_onnx
from stretto.weights.onnx.folder import find_folder

DATA = Path(__file__).parent / "data" / "onnx"
OPTIMUM = ("llama", "qwen2", "qwen3", "gemma3")  # made by scripts/make_tiny_onnx.py
GENAI = "genai"  # made by scripts/make_tiny_genai.py
NAMES = (*OPTIMUM, GENAI)
FREE = ("llama", "qwen2", "qwen3")  # position_ids, and no window
TOLERANCE = 3e-5  # between ways of computing the same logits, which go up to 7


@cache
def opened(name):
    """A model that is opened once; sessions have no state."""
    return open_onnx(find_folder(DATA / name), BackendOptions("cpu", 1, 1))


def backend(name, cells=64):
    model = opened(name)
    return OnnxBackend(model.session, model.graph, model.decoder, cells, 1)


@cache
def expected(name):
    """tokens[n], logits[n, n_vocab], and greedy continuations: of torch, of Optimum's runtime."""
    return dict(np.load(DATA / name / "expected.npz"))


class Plain:
    """Computes the rows of placed batches one by one: a call for each, its past gathered cell by cell."""

    def __init__(self, backend):
        self.graph, self.raw = backend.graph, backend.session.raw
        self.cells = {}  # K and V of each plane, by cell

    def forward(self, batch):
        placement, rows = batch.placement, {}
        for row in np.argsort(batch.positions, kind="stable").tolist():
            view = placement.views[placement.view_of[row]][: placement.lengths[row]]
            past = [int(cell) for cell in view if cell != placement.cells[row]]
            rows[row] = self.one(batch.tokens[row], batch.positions[row], past, int(placement.cells[row]))
        return np.stack([rows[int(row)] for row in batch.wanted])

    def one(self, token, position, past, cell):
        feeds = {
            "input_ids": np.array([[token]], np.int64),
            "attention_mask": np.ones((1, len(past) + 1), np.int64),
            "position_ids": np.array([[position]], np.int64),
        }
        feeds = {name: value for name, value in feeds.items() if name in self.graph.file.inputs}
        for i, plane in enumerate(self.graph.planes):
            gathered = [self.cells[each][i] for each in past] or [np.empty((plane.heads, 0, plane.size))]
            feeds[plane.past] = np.concatenate(gathered, axis=1)[None].astype(np.float32)
        outputs = ["logits", *(plane.present for plane in self.graph.planes)]
        logits, *presents = self.raw.run(outputs, feeds)
        self.cells[cell] = [present[0][:, -1:] for present in presents]
        return logits[0, -1]
