"""The matrices of all experts of a layer on the device, in one stack."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from stretto.backends.matrices import Rows
from stretto.backends.torch import unpacking
from stretto.backends.torch.device import Tensor
from stretto.backends.torch.layouts import LAYOUTS, TILE_ROWS, Packed
from stretto.backends.torch.matrix import Dense, Part, is_widened, load_data, of_data
from stretto.errors import InvalidRequest, Unsupported
from stretto.weights.formats import Format

PACKED_WEIGHTS = 1 << 28  # repacked at a time: a byte each, and copies


@dataclass(frozen=True)
class Stack:
    """The matrices of all experts, of one shape and format: expert e has rows e × `stride` and following."""

    n_expert: int
    rows: int
    columns: int
    part: Part
    format: Format
    interleaved: bool = False
    widened: dict[str, int] = field(default_factory=dict)

    @classmethod
    def load(
        cls,
        experts: Sequence[Sequence[Rows]],
        columns: int,
        device: Any,
        dtype: Any,
        *,
        interleave: bool = False,
    ) -> Stack:
        """The pieces of each expert, stacked along rows or interleaved, as `Matrix.load` has them."""
        found = {piece.format for pieces in experts for piece in pieces}
        if len(found) != 1:
            names = ", ".join(sorted(fmt.name for fmt in found))
            raise Unsupported(f"experts in several formats ({names}) run on the CPU: device='cpu'")
        fmt = found.pop()
        rows = sum(len(piece.data) for piece in experts[0])
        if any(sum(len(piece.data) for piece in pieces) != rows for pieces in experts):
            raise InvalidRequest("all experts must have the same number of rows", param="experts")
        parts = []
        each = max(1, PACKED_WEIGHTS // (rows * columns)) if rows % TILE_ROWS == 0 else 1
        for first in range(0, len(experts), each):
            some = experts[first : first + each]
            data = [load_data(pieces, device, dtype, interleave=interleave) for pieces in some]
            parts.append(of_data(torch.cat(data), fmt, columns, dtype))
        part = _stacked(parts)
        widened = {fmt.name: part.nbytes} if is_widened(fmt) else {}
        return cls(len(experts), rows, columns, part, fmt, interleave, widened)

    @property
    def stride(self) -> int:
        """Rows from one expert to the next: whole tiles of packed formats."""
        return -(-self.rows // TILE_ROWS) * TILE_ROWS if self.format in LAYOUTS else self.rows

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return self.part.nbytes

    def expert(self, e: int, dtype: Any) -> Tensor:
        """The numbers of expert e as they are multiplied with activations of a dtype, as float32."""
        first = e * self.stride
        if isinstance(self.part, Dense):
            return self.part.weight[first : first + self.rows].float()
        tiles = slice(first // TILE_ROWS, (first + self.stride) // TILE_ROWS)
        return unpacking.unpack(self.part.tiles(tiles, self.rows)).to(dtype).float()


def _stacked(parts: Sequence[Part]) -> Part:
    first = parts[0]
    if isinstance(first, Dense):
        return Dense(torch.cat([part.weight for part in parts if isinstance(part, Dense)]))
    packed = [part for part in parts if isinstance(part, Packed)]

    def join(name: str) -> Tensor | None:
        tensors = [getattr(part, name) for part in packed]
        return None if tensors[0] is None else torch.cat(tensors)

    tiles = sum(int(part.quants.shape[0]) for part in packed)
    return Packed(
        first.format,
        tiles * TILE_ROWS,
        first.columns,
        first.part,
        *(join(name) for name in ("quants", "high", "scales", "minima", "supers")),
    )
