"""The backend of graphs that take cell indices: everything that cells can express is exact.

A batch is one call. Pools are bound as inputs and outputs at once, so a step writes its own rows and copies
nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.backends.base import Batch, Capabilities
from stretto.backends.batch import Placement
from stretto.backends.onnx.backend import PoolBackend
from stretto.backends.onnx.graph import FLOATS, MAX_HEAD, Graph, Plane, n_rope_rows
from stretto.backends.onnx.grouping import check_plain
from stretto.backends.onnx.pool import FlatPool
from stretto.backends.onnx.spec import DecoderSpec, read_kv_heads
from stretto.backends.onnx_session import OnnxSession, make_failure
from stretto.errors import ModelError, Unsupported
from stretto.weights.onnx import OnnxFile

# Graphs with cell indices as inputs (`stretto export onnx --form cells`): what they take and return.
#
# tokens[n], positions[n], cells[n], rows[wanted], visible[n, used], visible.WINDOW[n, used], cells.N.key /
# .value [used, heads × size] → logits[1, wanted, n_vocab], updated.N.key / .value

POOL = re.compile(r"cells\.(\d+)\.(key|value)")
VISIBLE = re.compile(r"visible(?:\.(\d+))?")
PLAIN = ("tokens", "positions", "cells", "rows")
REMEDY = "export the model again with: stretto export onnx --form cells"


@dataclass(frozen=True, kw_only=True)
class CellsGraph(Graph):
    """The inputs and outputs of a graph over cells; `masks` are the inputs that say who sees whom."""

    masks: Mapping[str, int | None]  # their windows


def is_cells_graph(file: OnnxFile) -> bool:
    """Whether a graph takes cell indices."""
    return set(PLAIN) <= file.inputs.keys()


def read_cells_graph(file: OnnxFile) -> CellsGraph:
    """The graph's inputs and outputs; `ModelError` names what does not fit."""
    masks: dict[str, int | None] = {}
    for name in file.inputs:
        if match := VISIBLE.fullmatch(name):
            masks[name] = int(match[1]) if match[1] else None
    planes = tuple(_planes(file))
    known = {*PLAIN, *masks, *(plane.past for plane in planes)}
    if others := [name for name in file.inputs if name not in known]:
        raise Unsupported(
            f"{file.path.name}: inputs {', '.join(map(repr, others[:8]))} are not known; {REMEDY}"
        )
    if not planes or not masks or "logits" not in file.outputs:
        raise ModelError(f"it has no cells, no masks or no logits; {REMEDY}", path=file.path)
    types = {file.inputs[plane.past].type for plane in planes}
    if len(types) > 1 or not types <= set(FLOATS):
        raise Unsupported(f"{file.path.name}: cells are {', '.join(sorted(types))}; {REMEDY}")
    shape = file.outputs["logits"].shape or (None,)
    return CellsGraph(
        file=file,
        n_vocab=shape[-1] if isinstance(shape[-1], int) else None,
        planes=planes,
        type=types.pop(),
        n_rope_rows=n_rope_rows(file),
        masks=masks,
    )


def _planes(file: OnnxFile) -> Iterator[Plane]:
    heads = read_kv_heads(file)
    for name, value in file.inputs.items():
        match = POOL.fullmatch(name)
        if match is None:
            continue
        updated = f"updated.{match[1]}.{match[2]}"
        width = value.shape[1] if value.shape and len(value.shape) == 2 else None
        if updated not in file.outputs or not isinstance(width, int) or not 0 < width <= MAX_HEAD**2:
            raise ModelError(f"the shape {value.shape}, or no output {updated!r}; {REMEDY}", path=file.path)
        n = heads.get(int(match[1]), 0)
        if not n or width % n:
            raise ModelError(
                f"{width} numbers in {n} heads; {REMEDY}", path=file.path, field=f"input {name!r}"
            )
        yield Plane(name, updated, int(match[1]), n, width // n)


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
            raise make_failure(error, self.graph.file) from error
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
