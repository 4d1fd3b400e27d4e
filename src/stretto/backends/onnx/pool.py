"""K and V of all cells, on the host: what is gathered into past tensors, saved, copied and rotated."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.backends.onnx.graph import Plane
from stretto.models.parts import Rope

Ints = NDArray[np.int32]
Bytes = NDArray[np.uint8]
Array = NDArray[Any]


class Pool(ABC):
    """One array for each plane; memory is taken when it is first written."""

    def __init__(self, planes: tuple[Plane, ...], n_cells: int, dtype: str) -> None:
        self.planes = planes
        self.n_cells = n_cells
        self.dtype = np.dtype(dtype)
        self.arrays: list[Array] = [np.zeros(self._shape(plane), dtype) for plane in planes]
        self.cell_bytes = self.dtype.itemsize * sum(each.heads * each.size for each in planes)

    @abstractmethod
    def _shape(self, plane: Plane) -> tuple[int, ...]:
        """The shape of a plane's array."""

    @abstractmethod
    def rows(self, index: int, cells: Ints) -> Array:
        """[n, heads, size]: a copy of a plane of some cells."""

    @abstractmethod
    def set_rows(self, index: int, cells: Ints, values: Array) -> None:
        """Set a plane of some cells from [n, heads, size]."""

    def copy(self, source: Ints, target: Ints) -> None:
        """Copy cells, in order."""
        for index in range(len(self.planes)):
            self.set_rows(index, target, self.rows(index, source))

    def rotate(self, cells: Ints, delta: int, ropes: Mapping[int, Rope | None]) -> None:
        """Rotate the keys of cells by `delta` positions: rotations add up."""
        for index, plane in enumerate(self.planes):
            rope = ropes[plane.layer] if plane.is_key else None
            if rope is None:
                continue
            half = len(rope.frequencies)
            angles = rope.angles(np.array([delta]))[0]
            cos, sin = np.cos(angles), np.sin(angles)
            keys = self.rows(index, cells).astype(np.float64)
            a, b = keys[..., :half], keys[..., half : 2 * half]
            turned = a * cos - b * sin, b * cos + a * sin
            keys[..., :half], keys[..., half : 2 * half] = turned
            self.set_rows(index, cells, keys)

    def read(self, cells: Ints) -> Bytes:
        """uint8[n, cell_bytes], plane by plane."""
        rows = [self.rows(index, cells).reshape(len(cells), -1) for index in range(len(self.planes))]
        return np.concatenate(rows, axis=1).view(np.uint8).reshape(len(cells), self.cell_bytes)

    def write(self, cells: Ints, data: Bytes) -> None:
        """Set cells from the format of `read`."""
        rows, at = np.ascontiguousarray(data).view(self.dtype).reshape(len(cells), -1), 0
        for index, plane in enumerate(self.planes):
            n = plane.heads * plane.size
            self.set_rows(index, cells, rows[:, at : at + n].reshape(len(cells), plane.heads, plane.size))
            at += n


class HeadPool(Pool):
    """Planes as [heads, n_cells, size], so that past tensors are gathered by rows of a head."""

    def _shape(self, plane: Plane) -> tuple[int, ...]:
        return plane.heads, self.n_cells, plane.size

    def rows(self, index: int, cells: Ints) -> Array:
        """[n, heads, size]: a copy of a plane of some cells."""
        return self.arrays[index][:, cells].swapaxes(0, 1)

    def set_rows(self, index: int, cells: Ints, values: Array) -> None:
        """Set a plane of some cells from [n, heads, size]."""
        self.arrays[index][:, cells] = values.swapaxes(0, 1)

    def gather(self, index: int, cells: Ints, out: Array) -> None:
        """Write a plane of some cells to `out`, [heads, n, size]."""
        for head, target in zip(self.arrays[index], out, strict=True):
            np.take(head, cells, axis=0, out=target, mode="clip")

    def scatter(self, index: int, cells: Ints, values: Array) -> None:
        """Set a plane of some cells from [heads, n, size]."""
        self.arrays[index][:, cells] = values


class FlatPool(Pool):
    """Planes as [n_cells, heads × size], as graphs with cell indices take them."""

    def _shape(self, plane: Plane) -> tuple[int, ...]:
        return self.n_cells, plane.heads * plane.size

    def rows(self, index: int, cells: Ints) -> Array:
        """[n, heads, size]: a copy of a plane of some cells."""
        plane = self.planes[index]
        return self.arrays[index][cells].reshape(len(cells), plane.heads, plane.size)

    def set_rows(self, index: int, cells: Ints, values: Array) -> None:
        """Set a plane of some cells from [n, heads, size]."""
        self.arrays[index][cells] = values.reshape(len(cells), -1)
