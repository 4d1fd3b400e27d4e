"""Products with packed weights in 16 bits: numbers become bfloat16 on the way to the tensor cores.

The layout (layouts.py) gives each thread the numbers that it multiplies. Each warp walks one of the four
parts of K; their sums are added in order. Many rows are multiplied with widened weights, with the same bits:
every number is exact until it is rounded to bfloat16.
"""

import torch
import triton
import triton.language as tl

from stretto.backends.torch import cuda, octets
from stretto.backends.torch.device import is_interpreting
from stretto.backends.torch.kernels import dense
from stretto.backends.torch.kernels.dense import finish
from stretto.backends.torch.kernels.tiles import e2m1, e8m0, part_pointers, values, weights
from stretto.backends.torch.launching import launch
from stretto.backends.torch.layouts import PARTS, TILE_ROWS
from stretto.weights.formats import Format

# How kernels take packed parts: their tensors and constants.


def fastest(part, dtype):
    """How numbers become bfloat16: 0 as the interpreter can, 1 by PTX of ours, 2 two at a time (Q4_0)."""
    if is_interpreting():
        return 0
    return 2 if part.format is Format.Q4_0 and dtype == torch.bfloat16 else 1


def arguments(part):
    """The tensors of a packed part as kernels take them; what a format lacks is never read."""
    others = (part.high, part.scales, part.minima, part.supers)
    return (part.quants, *(part.quants if t is None else t for t in others))


def constants(part):
    """The constants of kernels for a packed part."""
    high = 0 if part.high is None else int(part.high.shape[-1])
    return {"FORMAT": part.layout.code, "STEP": part.layout.step, "HIGH": high}


# Packed weights back as numbers: whole rows of a matrix for products with many rows, and single ones.

STEPS = 4  # of a program


@triton.jit(do_not_specialize=["first", "rows"])
def tiles(
    quants, high, scales, minima, supers, out, first, rows, K, part,
    FORMAT: tl.constexpr, STEP: tl.constexpr, HIGH: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    """out[rows, K]: the numbers of rows from tile `first` on."""
    tile = first + tl.program_id(0) + tl.arange(0, 1)
    steps = part // STEP
    qp, hp, sp, mp, dp = part_pointers(quants, high, scales, minima, supers, tile, part, STEP, HIGH)
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
        lookup, (len(at), triton.cdiv(part.columns, block)),
        at, *arguments(part), out, part.columns, part.part, **constants(part), BK=block, num_warps=4,
    )  # fmt: skip
    return out


FEW_ROWS = 8  # by few.cu
FUSED_ROWS = 32
WIDENED_BYTES = 256 << 20  # of weights at a time


@triton.jit(do_not_specialize=["M", "each"])
def fused(
    x, quants, high, scales, minima, supers, bias, out, experts, pairs,
    M, N, K, part, stride, each, limit, alpha,
    FORMAT: tl.constexpr, NT: tl.constexpr, BM: tl.constexpr, STEP: tl.constexpr, HIGH: tl.constexpr,
    EVEN: tl.constexpr, ACT: tl.constexpr, GATED: tl.constexpr, BIAS: tl.constexpr,
    GROUPED: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """out[M, N] = x[M, K] wᵀ. GROUPED as in `dense.few`; an expert begins at a tile of its own."""
    BN: tl.constexpr = NT * 16
    tiles = tl.cdiv(N, 16)
    first = tl.program_id(0) * BN
    tile = tl.minimum(tl.program_id(0) * NT + tl.arange(0, NT), tiles - 1)
    if GROUPED:
        expert = tl.load(experts + tl.program_id(1))
        if expert < 0:
            return
        row = tl.program_id(1) * BM + tl.arange(0, BM)
        row = tl.load(pairs + row) if GROUPED == 1 else tl.where(row % BM == 0, row // BM, -1)
        is_row = row >= 0
        row = tl.maximum(row, 0)
        tile += expert * tiles
        bias += expert * N
        source = row // each
    else:
        row = tl.program_id(1) * BM + tl.arange(0, BM)
        is_row = row < M
        source = row
    steps = part // STEP
    qp, hp, sp, mp, dp = part_pointers(quants, high, scales, minima, supers, tile, part, STEP, HIGH)
    column = (tl.arange(0, 4) * part)[:, None] + tl.arange(0, STEP)[None, :]
    xp = x + source.to(tl.int64)[None, None, :] * K + column[:, :, None]
    acc = tl.zeros([4, BN, BM], tl.float32)
    for s in range(steps):
        w = weights(qp, hp, sp, mp, dp, s, FORMAT, NT, STEP, HIGH, FAST).to(x.dtype.element_ty)
        inside = is_row[None, None, :]
        if not EVEN:
            inside = inside & (column + s * STEP < K)[:, :, None]
        xt = tl.load(xp + s * STEP, mask=inside, other=0.0)
        acc = tl.dot(w, xt, acc)
    even, odd = acc.permute(1, 2, 0).reshape(BN, BM, 2, 2).split()
    p0, p2 = even.split()
    p1, p3 = odd.split()
    y = ((p0 + p1) + p2) + p3
    n = first + tl.arange(0, BN)
    finish(y, out, bias, n, first, row, N, stride, is_row, limit, alpha, BN, BM, ACT, GATED, BIAS)


def fused_tile(rows, n):
    """(NT, BM, stages) of `fused`: a block multiplies 16 × NT rows of the matrix, by four warps."""
    bm = 8 if rows <= 8 else 16 if rows <= 16 else 32
    return (1 if bm == 8 or (n <= 8192 and bm <= 16) else 2), bm, 6 if bm == 16 else 4


def product(x, part, out, bias, act, gated):
    """The product with a packed part of a matrix, written into `out`."""
    if octets.multiplies(x, part):
        octets.multiply(x, part, out, bias, act, gated)
    elif len(x) <= FEW_ROWS and cuda.fits(x, part, act):
        cuda.few(x, part, out, bias, act, gated)
    elif len(x) <= FUSED_ROWS and x.dtype != torch.float32:
        run_fused(x, part, out, bias, act, gated)
    else:
        widened(x, part, out, bias, act, gated)


def run_fused(x, part, out, bias, act, gated, tile=None, fast=None):
    """Launch `fused` for rows of one matrix."""
    x = x.contiguous()
    m, k = x.shape
    nt, bm, stages = tile or fused_tile(m, part.rows)
    if fast is None:
        fast = fastest(part, x.dtype)
    launch(
        fused, (triton.cdiv(part.rows, 16 * nt), triton.cdiv(m, bm)),
        x, *arguments(part), out if bias is None else bias, out, out, out,
        m, part.rows, k, part.part, out.stride(0), 1, 0.0, 0.0,
        **constants(part), NT=nt, BM=bm, EVEN=k == PARTS * part.part, ACT=act, GATED=gated,
        BIAS=bias is not None, GROUPED=0, FAST=fast, num_warps=4, num_stages=stages,
    )  # fmt: skip


def widened(x, part, out, bias, act, gated):
    """The product with weights widened to the type of x, some rows of the matrix at a time."""
    each = max(256, WIDENED_BYTES // (part.columns * x.element_size()) // 256 * 256)
    for first in range(0, part.rows, each):
        last = min(first + each, part.rows)
        w = some(part, first, last, x.dtype)
        to = out[:, first // 2 : last // 2] if gated else out[:, first:last]
        added = None if bias is None else bias[first:last]
        dense.multiply(x, w, to, added, act, gated, PARTS, part.part)
