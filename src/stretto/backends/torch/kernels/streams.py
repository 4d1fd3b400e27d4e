"""Mean squares of rows: one program for each, with as many warps as its width asks for."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl


@triton.jit
def mean_of_squares(x, out, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """One row."""
    row = tl.program_id(0).to(tl.int64)
    e = tl.arange(0, BLOCK)
    v = tl.load(x + row * WIDTH + e, mask=e < WIDTH, other=0.0)
    tl.store(out + row, tl.sum(v * v, 0) / WIDTH)


def mean_square(x: Any) -> Any:
    """float32[..., 1]: of x float32[..., width]."""
    x, width = x.contiguous(), x.shape[-1]
    out = torch.empty((*x.shape[:-1], 1), dtype=torch.float32, device=x.device)
    if out.numel():
        block = triton.next_power_of_2(width)
        mean_of_squares[(out.numel(),)](x, out, width, block, num_warps=4 if block <= 4096 else 8)
    return out
