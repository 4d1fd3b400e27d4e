"""Products with weights as they are: K walked in order by every tile, so that a row's bits never change.

`few` has the weights as the first operand, and any number of rows, which may be pairs of experts; `wide` has
the rows first and loads tiles by tensor descriptors. Both sum K in `PARTS` parts of `part` columns, added in
order: 1 of plain weights, as many as packed products have of widened ones.
"""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from stretto.backends.torch.device import is_hopper_or_newer, is_interpreting
from stretto.backends.torch.kernels.early import await_inputs, early_options
from stretto.backends.torch.kernels.epilogue import activate, finish, gate
from stretto.backends.torch.launching import launch

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
