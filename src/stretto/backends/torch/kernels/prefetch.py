"""Hints that bring weights from memory into the cache of the GPU."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["address", "n", "stride", "size"])
def prefetch(address, n, stride, size, BLOCK: tl.constexpr):
    """Ask for the first `size` bytes of n pieces that begin `stride` bytes apart; nothing waits for them."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = address.to(tl.int64) + tl.minimum(i, n - 1).to(tl.int64) * stride
    tl.inline_asm_elementwise(
        "cp.async.bulk.prefetch.L2.global [$1], $2; mov.b32 $0, 0;",
        "=r,l,r",
        [at, tl.full([BLOCK], 0, tl.int32) + size],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
