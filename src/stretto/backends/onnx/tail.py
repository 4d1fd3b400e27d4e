"""The end of one sequence that grows by a token a call: everything is bound once, and only numbers change.

A decode step of a small model takes a few milliseconds, and between two of them caches are cold: each tensor
that is made or bound costs tens of microseconds. So this keeps the binding of the call before, whose past and
present are one buffer, and the memory of its token, position, mask and logits. `benchmarks/onnx_export.py`
measures it.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.backends.base import Decoding
from stretto.backends.onnx.graph import IDS, DecoderGraph
from stretto.backends.onnx.kept import Kept, Presents

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]


class Tail:
    """A sequence whose K and V are in the buffers of one `Kept`, and the call that adds a token to them.

    `edits` and `n` say which sequence, and how much of it is computed: while its view has these edits, cells
    were only appended to it (cache/views.py). `settle` tells the others of the new cells; until then nobody
    else may look at what was kept.
    """

    def __init__(
        self, raw: Any, graph: DecoderGraph, presents: Presents, kept: Kept, edits: int, position: int
    ) -> None:
        self.edits = edits
        self.n = len(kept.cells[0])
        self.position = position  # of the next token
        self._graph, self._presents, self._kept = graph, presents, kept
        self._run, self._binding, self._width = raw.run_with_iobinding, kept.binding, kept.width
        self._new: list[int] = []  # cells of tokens since the last `settle`
        self._ids = np.zeros((1, 1), graph.ids_type)
        self._positions = np.zeros((1, 1), graph.positions_type)
        self._mask = np.zeros((1, kept.width), graph.mask_type)
        self._mask[0, : self.n] = 1
        self._logits: NDArray[Any] | None = None
        self._n_references = 0  # to the logits, while nobody else has them
        self._is_wide = graph.file.outputs[graph.logits].type == "float32"

    def continues(self, edits: int, n: int, position: int) -> bool:
        """Whether the token at `position`, behind `n` cells of a view with these edits, is the next one."""
        return n == self.n and edits == self.edits and position == self.position and n < self._width

    def follows(self, batch: Decoding) -> bool:
        """Whether a decode step is the next one of this sequence."""
        return (
            len(batch.ids) == 1
            and self.continues(batch.edits[0], batch.counts[0] - 1, batch.places[0])
            and batch.rotated is None
        )

    def step(self, token: int, cell: int, n_vocab: int) -> Floats:
        """float32[1, n_vocab]: compute the next token into a cell; if it raises, nothing has changed."""
        n, position = self.n, self.position
        self._ids[0, 0], self._positions[0, 0], self._mask[0, n] = token, position, 1
        if self._logits is None:
            self._bind_inputs()
        if self._logits is None or sys.getrefcount(self._logits) != self._n_references:
            self._bind_logits(n_vocab)
        self._run(self._binding)
        self._new.append(cell)
        self.n, self.position = n + 1, position + 1
        logits = self._logits
        assert logits is not None
        return logits if self._is_wide else logits.astype(np.float32)

    def settle(self) -> None:
        """Note the cells of new tokens: their K and V are in the buffers, and not yet in the pool."""
        if self._new:
            kept, new = self._kept, np.array(self._new, np.int32)
            self._presents.touch(new)
            kept.cells[0], kept.time = np.concatenate((kept.cells[0], new)), self._presents.clock
            self._new.clear()

    def _bind_inputs(self) -> None:
        graph = self._graph
        names = {IDS: self._ids, graph.mask: self._mask, graph.positions: self._positions}
        for name, array in names.items():
            if name is not None:
                place = array.dtype.type, array.shape, array.ctypes.data
                self._binding.bind_input(name, "cpu", 0, *place)

    def _bind_logits(self, n_vocab: int) -> None:
        """Memory for a row of logits that the caller may keep: it is used again when nobody has it."""
        graph = self._graph
        self._logits = np.empty((1, n_vocab), graph.file.outputs[graph.logits].type)
        self._n_references = sys.getrefcount(self._logits)  # counted as in `step`
        place = self._logits.dtype.type, (1, 1, n_vocab), self._logits.ctypes.data
        self._binding.bind_output(graph.logits, "cpu", 0, *place)
