"""Products with weights as they are: K walked in order by every tile, so that a row's bits never change.

`few` has the weights as the first operand, and any number of rows, which may be pairs of experts; `wide` has
the rows first and loads tiles by tensor descriptors. Both sum K in `PARTS` parts of `part` columns, added in
order: 1 of plain weights, as many as packed products have of widened ones.
"""

from __future__ import annotations

from math import inf
from typing import Any

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from stretto.backends.torch.device import is_hopper_or_newer, is_interpreting
from stretto.backends.torch.kernels.early import await_inputs, early_options
from stretto.backends.torch.launching import launch

# What follows the sums of a product: bias, activation, gate × up; for tiles with the weights' rows first.


@triton.jit
def tanh(x):
    """The hyperbolic tangent; exp may be infinite, the quotient is then 0."""
    return 1 - 2 / (1 + tl.exp(2 * x))


@triton.jit
def activate(x, ACT: tl.constexpr):
    """The activation of that code (activations.CODES)."""
    if ACT == 1:
        x = x / (1 + tl.exp(-x))
    elif ACT == 2:
        x = 0.5 * x * (1 + tanh(0.7978845608028654 * tl.fma(0.044715 * x * x, x, x)))
    elif ACT == 3:
        x = tl.maximum(x, 0.0)
        x = x * x
    elif ACT == 4:
        x = 0.5 * x * (1 + tl.erf(x * 0.7071067811865476))
    elif ACT == 5:
        x = tanh(x)
    elif ACT == 7:
        x = tl.maximum(x, 0.0)
    return x


@triton.jit
def gate(g, u, limit, alpha, ACT: tl.constexpr):
    """activation(g) × u; code 6 is the clamped SwiGLU."""
    if ACT == 6:
        g = tl.minimum(g, limit)
        u = tl.minimum(tl.maximum(u, -limit), limit)
        y = g / (1 + tl.exp(-alpha * g)) * (u + 1)
    else:
        y = activate(g, ACT) * u
    return y


@triton.jit
def finish(
    y, out, bias, n, first, row, N, stride, is_row, limit, alpha,
    BN: tl.constexpr, BM: tl.constexpr, ACT: tl.constexpr, GATED: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """Write sums y[BN, BM] of the weights' rows n into out[row]; gated ones are pairs of rows."""
    if BIAS:
        y += tl.load(bias + n, mask=n < N, other=0.0)[:, None]
    if GATED:
        g, u = y.reshape(BN // 2, 2, BM).permute(0, 2, 1).split()
        y = gate(g, u, limit, alpha, ACT)
        half = first // 2 + tl.arange(0, BN // 2)
        inside = is_row[None, :] & (half < N // 2)[:, None]
        at = out + row.to(tl.int64)[None, :] * stride + half[:, None]
    else:
        y = activate(y, ACT)
        inside = is_row[None, :] & (n < N)[:, None]
        at = out + row.to(tl.int64)[None, :] * stride + n[:, None]
    tl.store(at, y.to(out.dtype.element_ty), mask=inside)


FEW_ROWS = 32
EARLY_ROWS = 0  # rows up to which products are launched before the kernel before them has ended
EARLY_WIDE_ROWS = 64  # the same of wide tiles


@triton.jit(do_not_specialize=["M", "each"])
def few(
    x, w, bias, out, experts, pairs, M, N, K, part, stride, each, limit, alpha,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PARTS: tl.constexpr, EVEN: tl.constexpr,
    ACT: tl.constexpr, GATED: tl.constexpr, BIAS: tl.constexpr, GROUPED: tl.constexpr,
    PRECISION: tl.constexpr, EARLY: tl.constexpr = False,
):  # fmt: skip
    """out[M, N] = x[M, K] w[N, K]ᵀ. GROUPED: blocks of pairs of one expert; experts are N rows apart.

    GROUPED = 1: the pairs are given; 2: each pair is a block.
    """
    await_inputs(EARLY)
    first = tl.program_id(0) * BN
    n = first + tl.arange(0, BN)
    if GROUPED:
        expert = tl.load(experts + tl.program_id(1))
        if expert < 0:
            return
        row = tl.program_id(1) * BM + tl.arange(0, BM)
        row = tl.load(pairs + row) if GROUPED == 1 else tl.where(row % BM == 0, row // BM, -1)
        is_row = row >= 0
        row = tl.maximum(row, 0)
        w += expert.to(tl.int64) * N * K
        bias += expert * N
        source = row // each
    else:
        row = tl.program_id(1) * BM + tl.arange(0, BM)
        is_row = row < M
        source = row
    k = tl.arange(0, BK)
    wp = w + tl.minimum(n, N - 1).to(tl.int64)[:, None] * K + k[None, :]
    xp = x + source.to(tl.int64)[None, :] * K + k[:, None]
    y = tl.zeros([BN, BM], tl.float32)
    for begin in range(0, PARTS * part, part):
        acc = tl.zeros([BN, BM], tl.float32)
        end = tl.minimum(begin + part, K)
        for at in range(begin, end, BK):
            if EVEN:
                wt = tl.load(wp + at, eviction_policy="evict_first")
                xt = tl.load(xp + at, mask=is_row[None, :], other=0.0)
            else:
                inside = at + k < end
                wt = tl.load(wp + at, mask=inside[None, :], other=0.0, eviction_policy="evict_first")
                xt = tl.load(xp + at, mask=is_row[None, :] & inside[:, None], other=0.0)
            acc = tl.dot(wt, xt, acc, input_precision=PRECISION)
        y += acc
    finish(y, out, bias, n, first, row, N, stride, is_row, limit, alpha, BN, BM, ACT, GATED, BIAS)


@triton.jit(do_not_specialize=["M"])
def wide(
    x, w, bias, out, M, N, K, part, stride,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PARTS: tl.constexpr, GROUP: tl.constexpr,
    ACT: tl.constexpr, GATED: tl.constexpr, BIAS: tl.constexpr, EARLY: tl.constexpr = False,
):  # fmt: skip
    """The same numbers with the rows first; x and w are tensor descriptors, `part` is a multiple of BK."""
    await_inputs(EARLY)
    tiles_m, tiles_n = tl.cdiv(M, BM), tl.cdiv(N, BN)
    pid = tl.program_id(0)
    first = pid // (GROUP * tiles_n) * GROUP
    size = min(tiles_m - first, GROUP)
    tm = first + (pid % (GROUP * tiles_n)) % size
    tn = (pid % (GROUP * tiles_n)) // size
    y = tl.zeros([BM, BN], tl.float32)
    for begin in range(0, PARTS * part, part):
        acc = tl.zeros([BM, BN], tl.float32)
        for at in range(begin, tl.minimum(begin + part, K), BK):
            xt = x.load([tm * BM, at])
            wt = w.load([tn * BN, at])
            acc = tl.dot(xt, wt.T, acc)
        y += acc
    m = tm * BM + tl.arange(0, BM)
    n = tn * BN + tl.arange(0, BN)
    if BIAS:
        y += tl.load(bias + n, mask=n < N, other=0.0)[None, :]
    if GATED:
        g, u = y.reshape(BM, BN // 2, 2).split()
        y = gate(g, u, 0.0, 0.0, ACT)
        half = tn * (BN // 2) + tl.arange(0, BN // 2)
        inside = (m < M)[:, None] & (half < N // 2)[None, :]
        at = out + m.to(tl.int64)[:, None] * stride + half[None, :]
    else:
        y = activate(y, ACT)
        inside = (m < M)[:, None] & (n < N)[None, :]
        at = out + m.to(tl.int64)[:, None] * stride + n[None, :]
    tl.store(at, y.to(out.dtype.element_ty), mask=inside)


def few_tile(rows, n, k):
    """(BM, BN, BK, warps, stages) of `few`, as measured on an H200: narrow matrices have narrow tiles."""
    if rows > FEW_ROWS:
        return 64, 64, 64, 4, 4
    if rows > 16:
        return 32, 64, 128, 4, 5
    if n > 8192:
        return 16, 64, 128, 4, 4
    if n > 4096:
        return 16, 64, 128, 4, 5
    return (16, 32, 128, 4, 8) if k > 8192 else (16, 32, 256, 4, 4)


def wide_tile(rows, n, parts):
    """(BM, BN, BK, warps, stages) of `wide`; sums in parts need twice the registers."""
    if rows <= 64:
        if n <= 4096:
            return 64, 32, 128, 4, 5
        return (64, 64, 64, 4, 8) if n <= 8192 else (64, 128, 64, 4, 6)
    if parts > 1:
        return 128, 128, 64, 8, 4
    if rows <= 256:
        if n <= 4096:
            return 128, 64, 128, 4, 4
        return (128, 128, 64, 8, 4) if n <= 8192 else (128, 256, 64, 8, 4)
    return 128, 256, 64, 8, 3


def product(x, part, out, bias, act, gated):
    """The product with a part of a matrix (`Dense`), written into `out`."""
    multiply(x, part.weight, out, bias, act, gated)


def multiply(x, w, out, bias, act, gated, parts=1, part=0, tile=None, run=None):
    """out = x wᵀ by the kernel that the number of rows asks for; `tile` and `run` are for measurements."""
    x = x.contiguous()
    m, k = x.shape
    part = part or k
    if run is None:
        run = run_wide if m > FEW_ROWS and has_descriptors(x, w, parts, part) else run_few
    run(x, w, out, bias, act, gated, parts, part, tile)


def has_descriptors(x, w, parts, part):
    """Whether tiles can be loaded by tensor descriptors: rows are multiples of 16 bytes, and the GPU can."""
    return (
        x.dtype in (torch.bfloat16, torch.float16)
        and x.shape[1] % 8 == 0
        and (parts == 1 or part % 64 == 0)
        and x.data_ptr() % 16 == 0
        and w.data_ptr() % 16 == 0
        and not is_interpreting()
        and is_hopper_or_newer(x.device)
    )


def run_few(x, w, out, bias, act, gated, parts, part, tile):
    """Launch `few` for rows of one matrix."""
    (m, k), n = x.shape, len(w)
    bm, bn, bk, warps, stages = tile or few_tile(m, n, k)
    if x.dtype == torch.float32:
        bm, bn, bk, warps, stages = (16, 32, 32, 4, 2) if m <= 64 else (64, 64, 32, 8, 2)
    launch(
        few, (triton.cdiv(n, bn), triton.cdiv(m, bm)),
        x, w, out if bias is None else bias, out, out, out, m, n, k, part, out.stride(0), 1, 0.0, 0.0,
        BM=bm, BN=bn, BK=bk, PARTS=parts, EVEN=k % bk == 0 and part % bk == 0, ACT=act, GATED=gated,
        BIAS=bias is not None, GROUPED=0, PRECISION="ieee", num_warps=warps, num_stages=stages,
        **(early_options(x.device) if m <= EARLY_ROWS else {}),
    )  # fmt: skip


def run_wide(x, w, out, bias, act, gated, parts, part, tile):
    """Launch `wide`."""
    (m, k), n = x.shape, len(w)
    bm, bn, bk, warps, stages = tile or wide_tile(m, n, parts)
    bk = bk if parts == 1 or part % bk == 0 else 64
    launch(
        wide, (triton.cdiv(m, bm) * triton.cdiv(n, bn),),
        TensorDescriptor.from_tensor(x, [bm, bk]), TensorDescriptor.from_tensor(w, [bn, bk]),
        out if bias is None else bias, out, m, n, k, part, out.stride(0),
        BM=bm, BN=bn, BK=bk, PARTS=parts, GROUP=8, ACT=act, GATED=gated, BIAS=bias is not None,
        num_warps=warps, num_stages=stages, **(early_options(x.device) if m <= EARLY_WIDE_ROWS else {}),
    )  # fmt: skip


# Products of each head with a matrix of its own: K in order, so a row's bits are the same in any tile.

# Tiles by the most rows that they are for: with larger ones weights and rows are read less often.
TILES: tuple[tuple[float, dict[str, int]], ...] = (
    (32, {"BM": 16, "BN": 64, "BK": 64, "num_warps": 4, "num_stages": 3}),
    (256, {"BM": 64, "BN": 64, "BK": 64, "num_warps": 4, "num_stages": 3}),
    (inf, {"BM": 128, "BN": 128, "BK": 64, "num_warps": 8, "num_stages": 3}),
)
EXACT = {"BM": 32, "BN": 64, "BK": 32, "num_warps": 4, "num_stages": 2}  # of float32, where registers are few


@triton.jit(do_not_specialize=["n"])
def product_of_heads(
    x, w, out, n, stride_row, stride_head,
    HEADS: tl.constexpr, R: tl.constexpr, D: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A tile [BM, BN] of one head."""
    head = tl.program_id(1)
    rows = (tl.program_id(2) * BM + tl.arange(0, BM)).to(tl.int64)
    columns = tl.program_id(0) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    x_at = x + rows[:, None] * stride_row + head * stride_head + k[None, :]
    w_at = w + head.to(tl.int64) * R * D + columns[None, :] * D + k[:, None]
    sums = tl.zeros([BM, BN], tl.float32)
    for first in range(0, D, BK):
        inside = first + k < D
        a = tl.load(x_at + first, mask=(rows < n)[:, None] & inside[None, :], other=0.0)
        b = tl.load(w_at + first, mask=(columns < R)[None, :] & inside[:, None], other=0.0)
        sums = tl.dot(a, b, sums, input_precision=PRECISION)
    out_at = out + (rows[:, None] * HEADS + head) * R + columns[None, :]
    tl.store(out_at, sums.to(out.dtype.element_ty), mask=(rows < n)[:, None] & (columns < R)[None, :])


def head_product(x: Any, w: Any, tile: dict[str, int] | None = None) -> Any:
    """As `stretto.backends.torch.attention_layer.head_product` says."""
    n, (heads, r, d) = x.shape[0], w.shape
    out = torch.empty((n, heads, r), dtype=x.dtype, device=x.device)
    if tile is None:
        tile = EXACT if x.dtype == torch.float32 else next(tile for most, tile in TILES if n <= most)
    grid = (triton.cdiv(r, tile["BN"]), heads, triton.cdiv(n, tile["BM"]))
    if n:
        launch(
            product_of_heads, grid,
            x, w, out, n, x.stride(0), x.stride(1), heads, r, d,
            PRECISION="ieee" if x.dtype == torch.float32 else None, **tile,
        )  # fmt: skip
    return out


# One row times a matrix by plain sums, with the norm before and what follows in one kernel.
#
# Faster than the products that give all rows the same bits, and in another order of sums: for
# `exact=False`. Kernels may start before the one before them has ended, and wait for its results
# (`gdc_wait`).


@triton.jit
def gemv(
    x, gain, w, bias, out, N, eps,
    K: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, EVEN: tl.constexpr, NORM: tl.constexpr,
    BIAS: tl.constexpr, THEN: tl.constexpr, ACT: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """y = w norm(x) + bias; THEN 0: out = y; 1: out += y; 2: out = activation(even rows) × odd rows."""
    rows = tl.program_id(0) * BN + tl.arange(0, BN)
    inside = rows < N
    cols = tl.arange(0, BK)
    wp = w + tl.minimum(rows, N - 1).to(tl.int64)[:, None] * K + cols[None, :]
    await_inputs(EARLY)
    acc = tl.zeros([BN, BK], tl.float32)
    squares = tl.zeros([BK], tl.float32)
    for k in range(0, K, BK):
        if EVEN:
            wt = tl.load(wp + k, eviction_policy="evict_first")
            xt = tl.load(x + k + cols).to(tl.float32)
            if NORM:
                squares += xt * xt
                xt = xt * tl.load(gain + k + cols)
        else:
            ok = k + cols < K
            wt = tl.load(wp + k, mask=ok[None, :], other=0.0, eviction_policy="evict_first")
            xt = tl.load(x + k + cols, mask=ok, other=0.0).to(tl.float32)
            if NORM:
                squares += xt * xt
                xt = xt * tl.load(gain + k + cols, mask=ok, other=0.0)
        acc += wt.to(tl.float32) * xt[None, :]
    y = tl.sum(acc, 1)
    if NORM:
        y = y * tl.rsqrt(tl.sum(squares, 0) / K + eps)
    if BIAS:
        y += tl.load(bias + rows, mask=inside, other=0.0)
    if THEN == 2:
        g, u = y.reshape(BN // 2, 2).split()
        half = tl.program_id(0) * (BN // 2) + tl.arange(0, BN // 2)
        tl.store(out + half, gate(g, u, 0.0, 0.0, ACT).to(out.dtype.element_ty), mask=half < N // 2)
    else:
        if THEN == 1:
            y += tl.load(out + rows, mask=inside, other=0.0).to(tl.float32)
        tl.store(out + rows, y.to(out.dtype.element_ty), mask=inside)
