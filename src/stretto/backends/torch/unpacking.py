"""Packed weights back as numbers, in plain torch: what they mean, whatever kernel multiplies them."""

from __future__ import annotations

from typing import Any

import torch

from stretto.backends.torch.device import Tensor
from stretto.backends.torch.layouts import PARTS, TILE_ROWS, Packed
from stretto.weights.formats import Format

HALVES_E2M1 = (0, 1, 2, 3, 4, 6, 8, 12)  # twice the numbers that MXFP4's codes 0 to 7 mean


def unpack(packed: Packed) -> Tensor:
    """The exact numbers of all rows: float32[rows, columns]."""
    return values(packed, _numbers_of(packed), *(_groups_of(packed, t) for t in _fields(packed)))


def unpack_rows(packed: Packed, at: Tensor) -> Tensor:
    """The exact numbers of some rows: float32[n, columns]; `at` int[n]."""
    tile, row, below = at // TILE_ROWS, at % 8, at // 8 % 2
    numbers = _numbers(packed, packed.quants[tile], None if packed.high is None else packed.high[tile])
    numbers = _pick(numbers.unflatten(3, (8, 4)), row, below)  # [n, steps, PARTS, 4, 16s, 2, 2]
    steps = numbers.permute(0, 2, 1, 4, 5, 3, 6).flatten(1)[:, : packed.columns]

    def of(t: Tensor | None) -> Tensor | None:
        if t is None:
            return None
        x = t[tile].unflatten(-1, (-1, 2))  # [n, steps, PARTS, 8, each, 2]
        index = _index(len(at), x.device)
        return x[index, :, :, row, :, below].transpose(1, 2).flatten(1)

    return values(packed, steps, *(of(t) for t in _fields(packed)))


def _index(n: int, device: Any) -> Tensor:
    return torch.arange(n, device=device)


def _pick(numbers: Tensor, row: Tensor, below: Tensor) -> Tensor:
    index = _index(len(row), numbers.device)
    return numbers[index, :, :, row, :, :, :, below]


def _fields(packed: Packed) -> tuple[Tensor | None, ...]:
    return packed.scales, packed.minima, packed.supers, packed.floors


def _expand(words: Tensor, bits: int) -> Tensor:
    octets = words.view(torch.uint8)
    each = 8 // bits
    parts = [octets >> (bits * i) & ((1 << bits) - 1) for i in range(each)]
    return torch.stack(parts, -1).flatten(-2) if each > 1 else octets


def _numbers(packed: Packed, quants: Tensor, high: Tensor | None) -> Tensor:
    """uint8[n, steps, PARTS, 32, 16s of columns, 8 further, row + 8, pair]."""
    layout = packed.layout
    numbers = _expand(quants, layout.low)
    if high is not None:
        numbers = numbers | _expand(high, layout.high) << 4
    return numbers.unflatten(-1, (layout.step // 16, 2, 2, 2))


def _numbers_of(packed: Packed) -> Tensor:
    x = _numbers(packed, packed.quants, packed.high).unflatten(3, (8, 4))
    x = x.permute(
        0, 7, 3, 2, 1, 5, 6, 4, 8
    )  # tile, row + 8, row, part, step, 16, 8 further, lane's pair, pair
    return x.reshape(-1, PARTS * packed.part)[: packed.rows, : packed.columns]


def _groups_of(packed: Packed, x: Tensor | None) -> Tensor | None:
    if x is None:
        return None
    x = x.unflatten(-1, (-1, 2)).permute(0, 5, 3, 2, 1, 4)
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
    layout, columns = packed.layout, packed.columns

    def wide(x: Tensor, group: int) -> Tensor:
        return x.float().repeat_interleave(group, 1)[:, :columns]

    if packed.format is Format.MXFP4:
        halves = torch.tensor(HALVES_E2M1 + tuple(-x for x in HALVES_E2M1), device=numbers.device)
        exponents = wide(scales, 32) - 128
        return torch.ldexp(halves.float()[numbers.long()], exponents)
    scale = wide(scales, layout.group)
    if supers is not None:
        scale = scale * wide(supers, 256)
    x = (numbers.float() - layout.zero) * scale
    if minima is None:
        return x
    least = wide(minima, layout.group)
    return x + least if floors is None else x - least * wide(floors, 256)
