"""K and V of all cells, on the host: what is gathered into past tensors, saved, copied and rotated."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from stretto.backends.onnx.graph import Plane
from stretto.models.parts import Rope

Ints = NDArray[np.int32]
Bytes = NDArray[np.uint8]
Array = NDArray[np.floating]


class Pool:
    """One array for each plane: [heads, n_cells, size], so that a head's cells are gathered by rows."""

    def __init__(self, planes: tuple[Plane, ...], n_cells: int, dtype: str) -> None:
        self.planes = planes
        self.dtype = np.dtype(dtype)
        # Memory is taken when it is first written.
        self.arrays: list[Array] = [np.zeros((each.heads, n_cells, each.size), dtype) for each in planes]
        self.cell_bytes = self.dtype.itemsize * sum(each.heads * each.size for each in planes)

    def gather(self, index: int, cells: Ints, out: Array) -> None:
        """Write a plane of some cells to `out`, [heads, n, size]."""
        for head, target in zip(self.arrays[index], out, strict=True):
            np.take(head, cells, axis=0, out=target, mode="clip")

    def scatter(self, index: int, cells: Ints, values: Array) -> None:
        """Set a plane of some cells from [heads, n, size]."""
        self.arrays[index][:, cells] = values

    def copy(self, source: Ints, target: Ints) -> None:
        """Copy cells, in order."""
        for array in self.arrays:
            array[:, target] = array[:, source]

    def rotate(self, cells: Ints, delta: int, ropes: Mapping[int, Rope | None]) -> None:
        """Rotate the keys of cells by `delta` positions: rotations add up."""
        for plane, array in zip(self.planes, self.arrays, strict=True):
            rope = ropes[plane.layer] if plane.is_key else None
            if rope is None:
                continue
            half = len(rope.frequencies)
            angles = rope.angles(np.array([delta]))[0]
            cos, sin = np.cos(angles), np.sin(angles)
            keys = array[:, cells].astype(np.float64)
            a, b = keys[..., :half], keys[..., half : 2 * half]
            turned = a * cos - b * sin, b * cos + a * sin
            keys[..., :half], keys[..., half : 2 * half] = turned
            array[:, cells] = keys

    def read(self, cells: Ints) -> Bytes:
        """uint8[n, cell_bytes], plane by plane."""
        rows = [array[:, cells].swapaxes(0, 1).reshape(len(cells), -1) for array in self.arrays]
        return np.concatenate(rows, axis=1).view(np.uint8).reshape(len(cells), self.cell_bytes)

    def write(self, cells: Ints, data: Bytes) -> None:
        """Set cells from the format of `read`."""
        rows, at = np.ascontiguousarray(data).view(self.dtype).reshape(len(cells), -1), 0
        for plane, array in zip(self.planes, self.arrays, strict=True):
            n = plane.heads * plane.size
            part = rows[:, at : at + n].reshape(len(cells), plane.heads, plane.size)
            array[:, cells] = part.swapaxes(0, 1)
            at += n
