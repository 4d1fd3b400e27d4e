"""The part that both backends of ONNX decoders share: a session, a pool of cells, and what a graph lacks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stretto.backends.base import Batch, Capabilities, FusedRun, NoSlots
from stretto.backends.onnx.graph import Plane
from stretto.backends.onnx.packing import Packing
from stretto.backends.onnx.pool import Pool
from stretto.backends.onnx.spec import DecoderSpec
from stretto.backends.onnx_session import OnnxSession
from stretto.errors import Unsupported

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]


class PoolBackend(NoSlots):
    """A decoder on ONNX Runtime whose K and V are in a pool on the host."""

    name = "onnx"
    precision = "exact"
    capabilities: Capabilities
    packing = Packing()  # which products the native kernels compute

    def __init__(self, session: OnnxSession, decoder: DecoderSpec, pool: Pool, threads: int) -> None:
        self.session = session
        self.decoder = decoder
        self.spec = decoder.spec
        self.pool = pool
        self.n_cells = pool.n_cells
        self.active_threads = threads
        self.cell_bytes = pool.cell_bytes
        self.cell_layout = f"onnx {pool.dtype.name}, {_layout(pool.planes)}"

    @property
    def device(self) -> str:
        """The device that the session runs on."""
        return self.session.device

    def _before_reading(self) -> None:
        """See that the pool has everything."""

    def _before_writing(self, cells: Ints) -> None:
        """Note that cells of the pool get new contents."""

    def hidden(self, batch: Batch) -> Floats:
        """A graph returns logits only."""
        self.capabilities.require("hidden", self.name)
        raise AssertionError  # the line above has raised

    def loop(self, run: FusedRun) -> tuple[list[int], Floats]:
        """Only the native backend has a loop of its own."""
        raise Unsupported(f"the {self.name} backend has no fused loop; backend='native' has")

    def copy_cells(self, source: Ints, target: Ints) -> None:
        """Copy K and V of cells `source` to cells `target`."""
        self._before_reading()
        self._before_writing(target)
        self.pool.copy(source, target)

    def rotate_cells(self, cells: Ints, delta: int) -> None:
        """Rotate keys by `delta` positions, with the rope that the model's files give."""
        self.capabilities.require("shift", self.name)
        self._before_reading()
        self._before_writing(cells)
        self.pool.rotate(cells, delta, self.decoder.ropes)

    def read_cells(self, cells: Ints) -> Bytes:
        """uint8[n, cell_bytes], plane by plane."""
        self._before_reading()
        return self.pool.read(cells)

    def write_cells(self, cells: Ints, data: Bytes) -> None:
        """Write K and V of `cells`, in the format of `read_cells`."""
        self._before_reading()
        self._before_writing(cells)
        self.pool.write(cells, data)

    def close(self) -> None:
        """Free the session and the cache."""
        self.pool.arrays.clear()
        self.session.close()


def _layout(planes: Sequence[Plane]) -> str:
    """The planes in words, for the check of data from elsewhere."""
    kinds = " ".join(dict.fromkeys(f"{plane.heads}x{plane.size}" for plane in planes))
    return f"{len({plane.layer for plane in planes})} layers, heads {kinds}"
