"""Matrices on the device, and their product with rows.

A product gives a row the same bits whatever rows are beside it: K is walked in one order by every kernel.
Rows of bfloat16 are rounded to 8 bits for packed weights (octets.py); where they are not, a packed weight
means its exact value rounded to bfloat16 (float32 if activations are), in whatever kernel.

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
from stretto.backends.torch import activations, layouts
from stretto.backends.torch.device import Tensor, uses_kernels
from stretto.backends.torch.launching import launch
from stretto.backends.torch.layouts import LAYOUTS, PARTS, TILE_ROWS, Packed
from stretto.backends.torch.upload import upload
from stretto.errors import InvalidRequest
from stretto.weights import formats
from stretto.weights.formats import Format

# Packed weights back as numbers, in plain torch: what they mean, whatever kernel multiplies them.

HALVES_E2M1 = (0, 1, 2, 3, 4, 6, 8, 12)  # twice the numbers that MXFP4's codes 0 to 7 mean


def unpack(packed: Packed) -> Tensor:
    """The exact numbers of all rows: float32[rows, columns]."""
    return values(packed, _numbers_of(packed), *(_groups_of(packed, t) for t in _fields(packed)))


def unpack_rows(packed: Packed, at: Tensor) -> Tensor:
    """The exact numbers of some rows: float32[n, columns]; `at` int64[n]."""
    tile, row, below = at // TILE_ROWS, at % 8, at // 8 % 2
    index = torch.arange(len(at), device=at.device)
    numbers = _numbers(packed, packed.quants[tile], None if packed.high is None else packed.high[tile])
    numbers = numbers[index, :, :, row, :, :, below]  # [n, steps, PARTS, 4, 32s, 2, 2, 2]
    numbers = numbers.permute(0, 2, 1, 4, 6, 7, 3, 5).flatten(1)[:, : packed.columns]

    def of(t: Tensor | None) -> Tensor | None:
        return None if t is None else t[tile][index, :, :, row, :, below].transpose(1, 2).flatten(1)

    return values(packed, numbers, *(of(t) for t in _fields(packed)))


def _fields(packed: Packed) -> tuple[Tensor | None, ...]:
    """Scales, minima, d and dmin: [tiles, steps, PARTS, 8 rows, groups, row + 8]."""
    twice = packed.layout.step == 32
    scales, minima = (
        None if t is None else t[..., None, ::2] if twice else t.unflatten(-1, (2, 2))
        for t in (packed.scales, packed.minima)
    )
    if packed.supers is None:
        return scales, minima, None, None
    return scales, minima, packed.supers[..., None, ::2], packed.supers[..., None, 1::2]


def _expand(words: Tensor, bits: int) -> Tensor:
    octets = words.view(torch.uint8)
    each = 8 // bits
    parts = [octets >> (bits * i) & ((1 << bits) - 1) for i in range(each)]
    return torch.stack(parts, -1).flatten(-2) if each > 1 else octets


def _numbers(packed: Packed, quants: Tensor, high: Tensor | None) -> Tensor:
    """uint8[n, steps, PARTS, 8 rows, 4 pairs, 32s of columns, row + 8, next, 16 further, 8 further]."""
    layout = packed.layout
    numbers = _expand(quants, layout.low)
    if high is not None:
        numbers = numbers | _expand(high, layout.high) << 4
    return numbers.unflatten(-1, (layout.step // 32, 2, 2, 2, 2)).unflatten(3, (8, 4))


def _numbers_of(packed: Packed) -> Tensor:
    x = _numbers(packed, packed.quants, packed.high).permute(0, 6, 3, 2, 1, 5, 8, 9, 4, 7)
    return x.reshape(-1, PARTS * packed.part)[: packed.rows, : packed.columns]


def _groups_of(packed: Packed, x: Tensor | None) -> Tensor | None:
    if x is None:
        return None
    x = x.permute(0, 5, 3, 2, 1, 4)
    return x.reshape(x.shape[0] * TILE_ROWS, -1)[: packed.rows]


def values(
    packed: Packed,
    numbers: Tensor,
    scales: Tensor,
    minima: Tensor | None,
    supers: Tensor | None,
    floors: Tensor | None,
) -> Tensor:
    """float32[n, columns]: every step is exact, except at most one rounding at the end."""
    columns, fmt = packed.columns, packed.format

    def wide(x: Tensor, group: int) -> Tensor:
        return x.float().repeat_interleave(group, 1)[:, :columns]

    if fmt is Format.MXFP4:
        halves = torch.tensor(HALVES_E2M1 + tuple(-x for x in HALVES_E2M1), device=numbers.device)
        return torch.ldexp(halves.float()[numbers.long()], wide(scales, 32) - 128)
    x = numbers.float() - packed.layout.zero
    if supers is None:
        x = x * wide(scales, 32)
        return x if minima is None else x + wide(minima, 32)
    if fmt is Format.Q6_K:
        octets = scales.contiguous().view(torch.uint8)
        return x * ((wide(octets, 16) - 128) * wide(supers, 256))
    least = wide(scales >> 8, 32) * wide(floors, 256)
    return x * (wide(scales & 255, 32) * wide(supers, 256)) - least


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
            from stretto.backends.torch.kernels import packed

            rows: Any = packed.rows
            return rows(part, at, self.dtype).float()
        return unpack_rows(part, at.long()).to(self.dtype).float()


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


def in_float32(matrix: Matrix) -> Matrix:
    """A small matrix with the exact numbers of its parts: one product with rows of any type."""
    weight = torch.cat([weights(part, torch.float32) for part in matrix.parts])
    return Matrix(matrix.columns, torch.float32, (Dense(weight),), (Format.F32,))


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
    return unpack(part).to(dtype).float()


# Weights on their way into the GPU's cache while kernels run that read little.
#
# A decode step of few rows is bound by the memory, which idles while norms, rotations and attention run:
# some microseconds each, in every layer. So kernels that run just before a product have programs beside
# those that compute, which ask for the beginning of the matrix. No result depends on it, and nothing waits.
# Kernels of packed weights load their first ones early themselves, and those of lean.py are launched early:
# both lose by it.

PREFETCHED_BYTES = 3 << 20  # of a matrix; as measured on an H200: more slows down what runs meanwhile
MOST_ROWS = 8  # of a step that is bound by the memory
BLOCK = 128  # rows of a matrix that one program prefetches
UNIT = 16  # bytes that pieces and their sizes are multiples of


@dataclass(frozen=True)
class Prefetch:
    """Beginnings of a matrix's rows: how many rows, `stride` bytes apart, and `size` bytes of each."""

    weight: Tensor
    rows: int
    stride: int
    size: int

    def grid(self, rows: int) -> int:
        """How many programs for each row of a kernel ask for all of it."""
        return -(-self.rows // (BLOCK * rows))


def make_prefetch(matrix: Matrix) -> Prefetch | None:
    """What to ask for before a product, if anything: a share of the largest part that is not packed."""
    parts = [each for each in matrix.parts if isinstance(each, Dense) and each.weight.data_ptr() % UNIT == 0]
    if not parts:
        return None
    part = max(parts, key=lambda each: each.nbytes)
    stride = part.nbytes // part.rows
    size = int(stride * min(1.0, PREFETCHED_BYTES / matrix.nbytes)) // UNIT * UNIT
    return Prefetch(part.weight, part.rows, stride, size) if size and stride % UNIT == 0 else None


def prefetch_arguments(prefetch: Prefetch | None, unread: Tensor) -> tuple[Tensor, int, int, int]:
    """The arguments of kernels that may prefetch; without one they read none of them."""
    if prefetch is None:
        return unread, 1, 1, 1
    return prefetch.weight, prefetch.rows, prefetch.stride, prefetch.size
