"""Hints that bring weights from memory into the cache of the GPU."""

from __future__ import annotations

import triton
import triton.language as tl

from stretto.backends.torch.kernels.early import await_inputs


@triton.jit
def prefetch_rows(weight, part, rows, stride, size, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    """Ask for the first `size` bytes of BLOCK rows, `stride` bytes apart; nothing waits for them.

    `part`: which of the programs this is that prefetch beside a row of the kernel.
    """
    block = part * tl.num_programs(0) + tl.program_id(0)
    await_inputs(EARLY)  # more would be in the way of the last product
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
