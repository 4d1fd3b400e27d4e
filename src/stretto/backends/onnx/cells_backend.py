"""The backend of graphs that take cell indices: everything that cells can express is exact.

A batch is one call. Pools are bound as inputs and outputs at once, so a step writes its own rows and copies
nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.backends.base import Batch, Capabilities
from stretto.backends.batch import Placement
from stretto.backends.onnx.base import PoolBackend
from stretto.backends.onnx.cells_graph import CellsGraph
from stretto.backends.onnx.plan import check_plain
from stretto.backends.onnx.pool import FlatPool
from stretto.backends.onnx.spec import DecoderSpec
from stretto.backends.onnx_session import OnnxSession
from stretto.errors import ModelError

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]
Bools = NDArray[np.bool_]


class OnnxCellsBackend(PoolBackend):
    """Runs an export with cell indices."""

    def __init__(
        self, session: OnnxSession, graph: CellsGraph, decoder: DecoderSpec, n_cells: int, threads: int
    ) -> None:
        super().__init__(session, decoder, FlatPool(graph.planes, n_cells, graph.type), threads)
        self.graph = graph
        self.capabilities = Capabilities(shift=decoder.is_rotated, embeddings=False, hidden=False)

    def forward(self, batch: Batch) -> Floats:
        """float32[n_wanted, n_vocab]."""
        placement = check_plain(batch)
        wanted = batch.wanted
        rows = wanted if len(wanted) else np.zeros(1, np.int32)
        visible = _visible(placement, len(batch))
        used = visible.shape[1]
        binding = self.session.raw.io_binding()
        for name, values in (
            ("tokens", batch.tokens),
            ("positions", batch.positions),
            ("cells", placement.cells),
            ("rows", rows),
        ):
            binding.bind_cpu_input(name, values.astype(np.int64))
        for name, window in self.graph.masks.items():
            mask = visible
            if window is not None:
                near = placement.table[None, :used] > batch.positions[:, None] - window
                mask = visible & near
            binding.bind_cpu_input(name, mask)
        self._bind_pools(binding, used)
        binding.bind_output("logits", "cpu")
        try:
            self.session.raw.run_with_iobinding(binding)
        except Exception as error:  # ONNX Runtime's exceptions have no common base
            text = " ".join(str(error).split())
            raise ModelError(
                f"ONNX Runtime cannot compute it: {text:.500}", path=self.graph.file.path
            ) from error
        logits = binding.get_outputs()[-1].numpy().reshape(len(rows), -1)
        if logits.shape[1] != self.spec.n_vocab:
            raise ModelError(
                f"logits of shape {list(logits.shape)}, but there are {self.spec.n_vocab} tokens",
                path=self.graph.file.path,
                field="output 'logits'",
            )
        return np.ascontiguousarray(logits[: len(wanted)], np.float32)

    def _bind_pools(self, binding: Any, used: int) -> None:
        """The first `used` cells of each pool, read and written where they are."""
        for plane, array in zip(self.pool.planes, self.pool.arrays, strict=True):
            place = ("cpu", 0, array.dtype.type, (used, array.shape[1]), array.ctypes.data)
            binding.bind_input(plane.past, *place)
            binding.bind_output(plane.present, *place)


def _visible(placement: Placement, n: int) -> Bools:
    """bool[n, used]: the cells that each row sees, up to the last one in use."""
    used = 1 + max(int(placement.cells.max()), *(int(view.max()) for view in placement.views if len(view)))
    visible = np.zeros((n, used), bool)
    for row in range(n):
        visible[row, placement.views[placement.view_of[row]][: placement.lengths[row]]] = True
    return visible
