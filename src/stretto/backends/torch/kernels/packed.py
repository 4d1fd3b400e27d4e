"""Products with packed weights: numbers become bfloat16 on the way to the tensor cores.

The layout (layouts.py) gives each thread the numbers that it multiplies. Each warp walks one of the four
parts of K; their sums are added in order. Many rows are multiplied with widened weights, with the same bits:
every number is exact until it is rounded to bfloat16.
"""

import torch
import triton
import triton.language as tl

from stretto.backends.torch import packed_few
from stretto.backends.torch.kernels import dense, widen
from stretto.backends.torch.kernels.epilogue import finish
from stretto.backends.torch.kernels.parts import arguments, constants, fastest
from stretto.backends.torch.kernels.tiles import pointers, weights, words
from stretto.backends.torch.launching import launch
from stretto.backends.torch.layouts import PARTS

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
    qp = words(quants, tile, steps, 4)
    hp = qp
    if HIGH > 0:
        hp = words(high, tile, steps, HIGH)
    sp = pointers(scales, tile, steps)
    mp = pointers(minima, tile, steps)
    dp = pointers(supers, tile, part // 256)
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
    if len(x) <= FEW_ROWS and packed_few.fits(x, part, act):
        packed_few.few(x, part, out, bias, act, gated)
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
        w = widen.some(part, first, last, x.dtype)
        to = out[:, first // 2 : last // 2] if gated else out[:, first:last]
        some = None if bias is None else bias[first:last]
        dense.multiply(x, w, to, some, act, gated, PARTS, part.part)
