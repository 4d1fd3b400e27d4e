"""One row times a matrix by plain sums, with the norm before and what follows in one kernel.

Faster than the products that give all rows the same bits, and in another order of sums: for `exact=False`.
Kernels may start before the one before them has ended, and wait for its results (`gdc_wait`).
"""

from __future__ import annotations

import triton
import triton.language as tl

from stretto.backends.torch.kernels.early import await_inputs
from stretto.backends.torch.kernels.epilogue import gate


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
