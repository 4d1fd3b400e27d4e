"""Products of each head with a matrix of its own: K in order, so a row's bits are the same in any tile."""

from __future__ import annotations

from math import inf
from typing import Any

import torch
import triton
import triton.language as tl

from stretto.backends.torch.launching import launch

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
    """As `stretto.backends.torch.heads.head_product` says."""
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
