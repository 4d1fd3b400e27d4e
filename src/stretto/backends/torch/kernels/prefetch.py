"""Hints that bring weights from memory into the cache of the GPU."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def prefetch_rows(weight, block, rows, stride, size, BLOCK: tl.constexpr):
    """Ask for the first `size` bytes of BLOCK rows, `stride` bytes apart; nothing waits for them."""
    row = tl.minimum(block * BLOCK + tl.arange(0, BLOCK), rows - 1)
    at = weight.to(tl.int64) + row.to(tl.int64) * stride
    tl.inline_asm_elementwise(
        "cp.async.bulk.prefetch.L2.global [$1], $2; mov.b32 $0, 0;",
        "=r,l,r",
        [at, tl.full([BLOCK], 0, tl.int32) + size],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
