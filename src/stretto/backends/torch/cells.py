"""K and V of all cells, and the states of recurrent layers, on the device.

Numbers stand in the order that the native backend has, so that sequences saved by one can be restored by the
other. One cell more than there are takes what rows of padding write.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from stretto.backends.torch import planes
from stretto.backends.torch.device import Tensor
from stretto.backends.torch.planes import Plane
from stretto.backends.torch.weights import rotate
from stretto.errors import InvalidRequest
from stretto.models.parts import Rope
from stretto.models.spec import ModelSpec

Ints = NDArray[np.int32]
Bytes = NDArray[np.uint8]

PIECE_BYTES = 256 << 20  # of cells that are read or written at a time


class DeviceCells:
    """The planes of each layer: keys and values [n_cells + 1, heads, size], states [n_slots + 1, numbers]."""

    def __init__(self, spec: ModelSpec, n_cells: int, n_slots: int, kv: str, device: torch.device) -> None:
        self.spec, self.device, self.n_cells, self.n_slots = spec, device, n_cells, n_slots

        def new(shapes: list[tuple[int, int] | None]) -> list[Plane | None]:
            return [
                None if shape is None else planes.new_plane(kv, n_cells + 1, *shape, device)
                for shape in shapes
            ]

        self.keys = new([layer.kv for layer in spec.layers])
        self.values = new([layer.v for layer in spec.layers])
        self.states = [
            torch.zeros((n_slots + 1, layer.state_floats), device=device) if layer.state_floats else None
            for layer in spec.layers
        ]
        self.cell_bytes = sum(planes.to_bytes(plane[:1]).numel() for plane in self._planes())
        self.nbytes = sum(plane.nbytes for plane in self._planes()) + sum(s.nbytes for s in self._states())
        self.slot_bytes = 4 * spec.state_floats
        self.after_rope: dict[int, Tensor] = {}  # what layers multiply keys with once they are rotated

    def _planes(self) -> list[Plane]:
        """K and V of one layer after the other."""
        pairs = zip(self.keys, self.values, strict=True)
        return [plane for pair in pairs for plane in pair if plane is not None]

    def copy(self, source: Ints, target: Ints) -> None:
        """Copy K and V of cells `source` to cells `target`."""
        old, new = self._indices(source), self._indices(target)
        for plane in self._planes():
            for part in planes.tensors(plane):
                part[new] = part[old]

    def read(self, cells: Ints) -> Bytes:
        """uint8[n, cell_bytes], in the order [n][layer][K, V][head]."""
        found = np.empty((len(cells), self.cell_bytes), np.uint8)
        for at in self._pieces(len(cells)):
            n, where = len(found[at]), self._indices(cells[at])
            rows = [planes.to_bytes(planes.select(plane, where)).reshape(n, -1) for plane in self._planes()]
            found[at] = _to_host(rows, n, self.cell_bytes)
        return found

    def write(self, cells: Ints, data: Bytes) -> None:
        """Write K and V of `cells`, in the format of `read`."""
        _check("cells", cells, self.n_cells, data, self.cell_bytes)
        for at in self._pieces(len(cells)):
            self._write(cells[at], data[at])

    def _pieces(self, n: int) -> list[slice]:
        """Some cells at a time: all of a long sequence would be a second cache on the device."""
        step = max(1, PIECE_BYTES // max(1, self.cell_bytes))
        return [slice(first, first + step) for first in range(0, n, step)]

    def _write(self, cells: Ints, data: Bytes) -> None:
        where, at = self._indices(cells), 0
        rows = torch.from_numpy(np.ascontiguousarray(data)).to(self.device)
        for plane in self._planes():
            size = planes.to_bytes(plane[:1]).numel()
            piece = rows[:, at : at + size].reshape(len(rows), plane.shape[1], -1)
            read = planes.from_bytes(piece, plane)
            for part, new in zip(planes.tensors(plane), planes.tensors(read), strict=True):
                part[where] = new
            at += size

    def rotate(self, cells: Ints, delta: int) -> None:
        """Rotate keys by `delta` positions: rotations add up; the magnitude is in the keys already."""
        where = self._indices(cells)
        for i, (keys, layer) in enumerate(zip(self.keys, self.spec.layers, strict=True)):
            rope = getattr(layer.attention or layer.mixer, "rope", None)
            if keys is None or rope is None:
                continue
            # What stands before the rotated part of a compressed key stays.
            first = getattr(layer.mixer, "rank", 0)
            cos, sin = self._turn(rope, delta)
            weights = self.after_rope.get(i)
            whole = planes.read(keys, where).float()
            old = whole[..., first:]
            turned = rotate(old if weights is None else old / weights, cos, sin, replace(rope, magnitude=1.0))
            whole[..., first:] = turned if weights is None else turned * weights
            planes.write(whole, keys, where)

    def _turn(self, rope: Rope, delta: int) -> tuple[Tensor, Tensor]:
        angles = delta * np.asarray(rope.frequencies)
        both = np.stack((np.cos(angles), np.sin(angles))).astype(np.float32)
        cos, sin = torch.from_numpy(both).to(self.device)
        return cos[None, None], sin[None, None]

    def copy_slots(self, source: Ints, target: Ints) -> None:
        """Copy the states of slots `source` to slots `target`."""
        old, new = self._indices(source), self._indices(target)
        for states in self._states():
            states[new] = states[old]

    def clear_slots(self, slots: Ints) -> None:
        """Set the states of `slots` to that of no tokens."""
        where = self._indices(slots)
        for states in self._states():
            states[where] = 0

    def read_slots(self, slots: Ints) -> Bytes:
        """uint8[n, slot_bytes], layer by layer."""
        where = self._indices(slots)
        rows = [states[where].view(torch.uint8) for states in self._states()]
        return _to_host(rows, len(slots), self.slot_bytes)

    def write_slots(self, slots: Ints, data: Bytes) -> None:
        """Write the states of `slots`, in the format of `read_slots`."""
        _check("slots", slots, self.n_slots, data, self.slot_bytes)
        where, at = self._indices(slots), 0
        rows = torch.from_numpy(np.ascontiguousarray(data).view(np.float32)).to(self.device)
        for states in self._states():
            states[where] = rows[:, at : at + states.shape[1]]
            at += states.shape[1]

    def _states(self) -> list[Tensor]:
        return [states for states in self.states if states is not None]

    def _indices(self, numbers: Ints) -> Tensor:
        return torch.from_numpy(np.array(numbers, np.int64)).to(self.device)


def _check(name: str, numbers: Ints, n: int, data: Bytes, size: int) -> None:
    """Raise unless there are so many bytes for each cell or slot, and all of these exist.

    A kernel that writes elsewhere would end the process's use of the device.
    """
    if data.dtype != np.uint8 or data.shape != (len(numbers), size):
        raise InvalidRequest(
            f"data must be uint8[{len(numbers)}, {size}] for so many {name}, not {data.dtype}"
            f"{list(data.shape)}",
            param="data",
        )
    if len(numbers) and (int(np.min(numbers)) < 0 or int(np.max(numbers)) >= n):
        raise InvalidRequest(f"{name} must be from 0 to {n - 1}", param=name)


def _to_host(rows: list[Tensor], n: int, nbytes: int) -> Bytes:
    if not rows or not n:
        return np.empty((n, nbytes), np.uint8)
    found: Bytes = torch.cat(rows, dim=1).contiguous().cpu().numpy().reshape(n, nbytes)
    return found
