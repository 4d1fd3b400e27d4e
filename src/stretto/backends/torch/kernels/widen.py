"""Packed weights back as numbers: whole rows of a matrix for products with many rows, and single ones."""

import torch
import triton
import triton.language as tl

from stretto.backends.torch.kernels.parts import arguments, constants
from stretto.backends.torch.kernels.tiles import e2m1, e8m0, pointers, values, weights, words
from stretto.backends.torch.launching import launch
from stretto.backends.torch.layouts import TILE_ROWS

STEPS = 4  # of a program


@triton.jit(do_not_specialize=["first", "rows"])
def tiles(
    quants, high, scales, minima, supers, out, first, rows, K, part,
    FORMAT: tl.constexpr, STEP: tl.constexpr, HIGH: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    """out[rows, K]: the numbers of rows from tile `first` on."""
    tile = first + tl.program_id(0) + tl.arange(0, 1)
    steps = part // STEP
    qp = words(quants, tile, steps, 4)
    hp = qp
    if HIGH > 0:
        hp = words(high, tile, steps, HIGH)
    sp = pointers(scales, tile, steps)
    mp = pointers(minima, tile, steps)
    dp = pointers(supers, tile, part // 256)
    n = tl.program_id(0) * 16 + tl.arange(0, 16)
    column = (tl.arange(0, 4) * part)[:, None] + tl.arange(0, STEP)[None, :]
    to = out + n.to(tl.int64)[None, :, None] * K + column[:, None, :]
    begin = tl.program_id(1) * STEPS
    for s in range(begin, tl.minimum(begin + STEPS, steps)):
        w = weights(qp, hp, sp, mp, dp, s, FORMAT, 1, STEP, HIGH, 0)
        inside = (n < rows)[None, :, None] & (column + s * STEP < K)[:, None, :]
        tl.store(to + s * STEP, w.to(out.dtype.element_ty), mask=inside)


@triton.jit
def lookup(
    at, quants, high, scales, minima, supers, out, K, part,
    FORMAT: tl.constexpr, STEP: tl.constexpr, HIGH: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """out[n, K]: row at[n] of the matrix, number by number."""
    row = tl.load(at + tl.program_id(0)).to(tl.int64)
    k = tl.program_id(1) * BK + tl.arange(0, BK)
    inside = k < K
    k = tl.minimum(k, K - 1)
    column = k % part
    c = column % STEP
    below = row // 8 % 2
    tile = (row // 16 * (part // STEP) + column // STEP) * 4 + k // part
    lane = row % 8 * 4 + c // 2 % 4
    flat = c // 32 * 16 + below * 8 + c % 2 * 4 + c // 16 % 2 * 2 + c // 8 % 2
    if FORMAT == 0:
        word = tl.load(quants + (tile * 32 + lane) * 4 + flat // 4)
        number = (word >> (flat % 4 * 8).to(tl.int32)) & 255
    else:
        word = tl.load(quants + (tile * 32 + lane) * 4 + flat // 8)
        number = (word >> (flat % 8 * 4).to(tl.int32)) & 15
    if HIGH == 1:
        more = tl.load(high + tile * 32 + lane)
        number |= ((more >> flat.to(tl.int32)) & 1) << 4
    if HIGH == 2:
        more = tl.load(high + (tile * 32 + lane) * 2 + flat // 16)
        number |= ((more >> (flat % 16 * 2).to(tl.int32)) & 3) << 4
    place = (tile * 8 + row % 8) * 4 + (below * 2 if FORMAT == 0 else c // 32 * 2 + below)
    scale = tl.load(scales + place)
    least = 0.0
    if FORMAT == 3:
        t = e2m1(number)
        scale = e8m0(scale)
    else:
        t = 1 + number.to(tl.float32) / (
            256 if FORMAT == 0 else 32 if FORMAT == 5 else 64 if FORMAT == 6 else 16
        )
    if FORMAT <= 2:
        scale = scale.to(tl.float32)
    if FORMAT == 2:
        least = -tl.load(minima + place).to(tl.float32)
    if FORMAT >= 4:
        span = (((row // 16 * (part // 256) + column // 256) * 4 + k // part) * 8 + row % 8) * 4 + below * 2
        d = tl.load(supers + span).to(tl.float32)
        both = scale.to(tl.int32)
        if FORMAT == 6:
            scale = (((both >> (c // 16 % 2 * 8)) & 255) - 128).to(tl.float32) * d
        else:
            scale = (both & 255).to(tl.float32) * d
            least = (both >> 8).to(tl.float32) * tl.load(supers + span + 1).to(tl.float32)
    v = values(t, scale, least, FORMAT, 0)
    tl.store(out + tl.program_id(0).to(tl.int64) * K + k, v.to(out.dtype.element_ty), mask=inside)


def some(part, first, last, dtype):
    """Rows `first` to `last` of a packed part, `first` at the begin of a tile: dtype[rows, columns]."""
    n = last - first
    out = torch.empty(n, part.columns, dtype=dtype, device=part.quants.device)
    steps = triton.cdiv(part.part, part.layout.step * STEPS)
    launch(
        tiles, (triton.cdiv(n, TILE_ROWS), steps),
        *arguments(part), out, first // TILE_ROWS, n, part.columns, part.part, **constants(part), STEPS=STEPS,
        num_warps=4,
    )  # fmt: skip
    return out


def rows(part, at, dtype):
    """Rows of a packed part looked up: dtype[n, columns]."""
    out = torch.empty(len(at), part.columns, dtype=dtype, device=part.quants.device)
    block = 512
    launch(
        lookup,
        (len(at), triton.cdiv(part.columns, block)),
        at,
        *arguments(part),
        out,
        part.columns,
        part.part,
        **constants(part),
        BK=block,
        num_warps=4,
    )
    return out
