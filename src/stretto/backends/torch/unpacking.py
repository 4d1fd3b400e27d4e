"""Packed weights back as numbers, in plain torch: what they mean, whatever kernel multiplies them."""

from __future__ import annotations

import torch

from stretto.backends.torch.device import Tensor
from stretto.backends.torch.layouts import PARTS, TILE_ROWS, Packed
from stretto.weights.formats import Format

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
