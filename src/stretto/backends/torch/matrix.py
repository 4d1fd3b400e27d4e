"""Matrices on the device, and their product with rows.

A product gives a row the same bits whatever rows are beside it: K is walked in one order by every kernel. A
packed weight means its exact value rounded to bfloat16 (float32 if activations are), in whatever kernel.

    qkv = Matrix.load([q, k, v], columns, device, torch.bfloat16)
    y = product(x, qkv)                                               # [n, rows of all three]
    gate_up = Matrix.load([gate, up], columns, device, torch.bfloat16, interleave=True)
    inner = product(x, gate_up, activation="silu")                    # silu(gate x) × up x
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np
import torch

from stretto.backends.matrices import Rows
from stretto.backends.torch import activations, layouts, unpacking
from stretto.backends.torch.device import Tensor, uses_kernels
from stretto.backends.torch.launching import launch
from stretto.backends.torch.layouts import LAYOUTS, Packed
from stretto.backends.torch.upload import upload
from stretto.errors import InvalidRequest
from stretto.weights import formats
from stretto.weights.formats import Format

WIDENED_ROWS_BYTES = 64 << 20  # dequantised on the host at a time
LOOKED_UP = 1024  # numbers of a row that one program looks up


@dataclass(frozen=True)
class Dense:
    """Rows of a matrix as they are multiplied: weight dtype[rows, columns]."""

    weight: Tensor

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return int(self.weight.shape[0])

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return int(self.weight.nbytes)


Part = Dense | Packed


@dataclass(frozen=True)
class Matrix:
    """A matrix of one or several tensors of a file, in parts that have one format each.

    `interleaved`: rows are gate 0, up 0, gate 1, up 1 and so on; if gate and up have different formats they
    are two parts instead, and `halves` says so. `widened` names formats that are not multiplied packed, with
    the bytes they take on the device.
    """

    columns: int
    dtype: Any
    parts: tuple[Part, ...]
    formats: tuple[Format, ...]
    interleaved: bool = False
    halves: bool = False
    widened: dict[str, int] = field(default_factory=dict)

    @classmethod
    def load(
        cls, pieces: Sequence[Rows], columns: int, device: Any, dtype: Any, *, interleave: bool = False
    ) -> Matrix:
        """Pieces stacked along rows, or two of the same size interleaved row by row."""
        if interleave and (len(pieces) != 2 or len(pieces[0].data) != len(pieces[1].data)):
            raise InvalidRequest("two pieces of the same size are interleaved", param="pieces")
        same = len({piece.format for piece in pieces}) == 1
        parts: list[Part] = []
        widened: dict[str, int] = {}
        for fmt, group in groupby(pieces, key=lambda piece: piece.format):
            part = load_part(list(group), columns, device, dtype, interleave=interleave and same)
            if is_widened(fmt):
                widened[fmt.name] = widened.get(fmt.name, 0) + part.nbytes
            parts.append(part)
        found = tuple(dict.fromkeys(piece.format for piece in pieces))
        return cls(columns, dtype, tuple(parts), found, interleave, interleave and not same, widened)

    @property
    def rows(self) -> int:
        """How many rows all parts have."""
        return sum(part.rows for part in self.parts)

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return sum(part.nbytes for part in self.parts)

    def row(self, at: Tensor) -> Tensor:
        """float32[n, columns]: rows looked up, dequantised and rounded to `dtype`; `at` int32[n]."""
        if len(self.parts) > 1:
            raise InvalidRequest("rows are looked up in matrices of one format", param="at")
        part = self.parts[0]
        if isinstance(part, Dense):
            return looked_up(part.weight, at)
        if uses_kernels(part.quants):
            from stretto.backends.torch.kernels import widen

            rows: Any = widen.rows
            return rows(part, at, self.dtype).float()
        return unpacking.unpack_rows(part, at.long()).to(self.dtype).float()


def looked_up(weight: Tensor, at: Tensor) -> Tensor:
    """float32[n, columns]: rows of a matrix."""
    if not uses_kernels(weight):
        return weight[at].float()
    from stretto.backends.torch.kernels.early import early_options
    from stretto.backends.torch.kernels.rowwise import look_up

    n, columns = len(at), weight.shape[1]
    out = torch.empty(n, columns, dtype=torch.float32, device=weight.device)
    grid = n, -(-columns // LOOKED_UP)
    launch(look_up, grid, weight, at, out, WIDTH=columns, BLOCK=LOOKED_UP, **early_options(weight.device))
    return out


def is_widened(fmt: Format) -> bool:
    """Whether a format is not multiplied in packed form."""
    return fmt not in LAYOUTS and fmt not in (Format.BF16, Format.F16, Format.F32)


def load_part(pieces: Sequence[Rows], columns: int, device: Any, dtype: Any, *, interleave: bool) -> Part:
    """Pieces of one format, on the device."""
    data = load_data(pieces, device, dtype, interleave=interleave)
    return of_data(data, pieces[0].format, columns, dtype)


def load_data(pieces: Sequence[Rows], device: Any, dtype: Any, *, interleave: bool) -> Tensor:
    """The file's bytes of pieces of one format on the device, or numbers if the format is widened."""
    if is_widened(pieces[0].format):
        loaded = [_dequantized(piece, device, dtype) for piece in pieces]
    else:
        loaded = [upload(piece.data, device) for piece in pieces]
    if interleave:
        return torch.stack(loaded, 1).flatten(0, 1)
    return torch.cat(loaded) if len(loaded) > 1 else loaded[0]


def of_data(data: Tensor, fmt: Format, columns: int, dtype: Any) -> Part:
    """The part that the file's bytes (or widened numbers), which are on the device, make."""
    if is_widened(fmt):
        return Dense(data)
    if fmt in LAYOUTS:
        return layouts.pack(data, fmt, columns)
    stored = {Format.BF16: torch.bfloat16, Format.F16: torch.float16, Format.F32: torch.float32}[fmt]
    return Dense(data.view(stored).to(dtype))


def _dequantized(piece: Rows, device: Any, dtype: Any) -> Tensor:
    """The numbers of a format that has no packed form here, dequantised on the host some rows at a time."""
    loaded = []
    columns = piece.data.shape[1] // piece.format.size * piece.format.block
    each = max(1, WIDENED_ROWS_BYTES // (4 * columns))
    for first in range(0, len(piece.data), each):
        numbers = formats.dequantize(piece.data[first : first + each], piece.format)
        loaded.append(upload(np.ascontiguousarray(numbers), device).view(torch.float32).to(dtype))
    return torch.cat(loaded)


def interleaved(gate: Tensor, up: Tensor) -> Tensor:
    """Two vectors (or the last axes of two arrays) interleaved as the rows of gate and up are."""
    return torch.stack((gate, up), -1).flatten(-2)


def product(
    x: Tensor,
    m: Matrix,
    *,
    bias: Tensor | None = None,
    activation: str = "",
    out: Tensor | None = None,
    out_dtype: Any = None,
) -> Tensor:
    """x[n, columns] times the matrix, transposed: [n, rows]; `bias` float32[rows] in the order of its rows.

    With an activation it is activation(y); of an interleaved matrix activation(gate) × up: [n, rows / 2].
    """
    gated = m.interleaved and bool(activation)
    if out is None:
        width = m.rows // 2 if gated else m.rows
        out = torch.empty(len(x), width, dtype=out_dtype or x.dtype, device=x.device)
    if m.halves:
        return _of_halves(x, m, bias, activation, out)
    if len(m.parts) == 1:
        multiply(x, m.parts[0], out, bias, activation, gated)
        return out
    for part, rows in _slices(m):
        written = slice(rows.start // 2, rows.stop // 2) if gated else rows
        part_bias = None if bias is None else bias[rows]
        multiply(x, part, out[:, written], part_bias, activation, gated)
    return out


def _slices(m: Matrix) -> Iterator[tuple[Part, slice]]:
    first = 0
    for part in m.parts:
        yield part, slice(first, first + part.rows)
        first += part.rows


def _of_halves(x: Tensor, m: Matrix, bias: Tensor | None, activation: str, out: Tensor) -> Tensor:
    """Gate and up in different formats: two products, and the activation apart."""
    both = []
    for i, part in enumerate(m.parts):
        y = torch.empty(len(x), part.rows, dtype=torch.float32, device=x.device)
        multiply(x, part, y, None if bias is None else bias[i::2].contiguous(), "", False)
        both.append(y)
    return out.copy_(activations.gate(activation, *both) if activation else interleaved(*both))


def multiply(x: Tensor, part: Part, out: Tensor, bias: Tensor | None, activation: str, gated: bool) -> None:
    """Write the product with one part into `out`, a slice of rows of any stride."""
    if uses_kernels(x):
        from stretto.backends.torch.kernels import dense, packed

        run: Any = dense.product if isinstance(part, Dense) else packed.product
        run(x, part, out, bias, activations.code(activation), gated)
        return
    y = x.float() @ weights(part, x.dtype).T
    if bias is not None:
        y = y + bias
    if gated:
        out.copy_(activations.gate(activation, y[:, ::2], y[:, 1::2]))
    else:
        out.copy_(activations.activate(activation, y))


def weights(part: Part, dtype: Any) -> Tensor:
    """The numbers of a part as they are multiplied with activations of a dtype, as float32."""
    if isinstance(part, Dense):
        return part.weight.float()
    return unpacking.unpack(part).to(dtype).float()
