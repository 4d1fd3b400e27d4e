"""K or V of rows into their cells, in Triton: one launch for any kind of plane."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from stretto.backends.torch.device import is_interpreting
from stretto.backends.torch.launching import launch
from stretto.backends.torch.planes import BLOCK, Q8, Plane

Q8_BLOCK = tl.constexpr(BLOCK)
FP8_MOST = tl.constexpr(448.0)  # beyond it e4m3 has no number
ROUNDER = tl.constexpr(12582912.0)  # 1.5 × 2²³: a sum with it has no fraction, rounded to the nearest even


@triton.jit
def store_rows(
    x, plane, scales, cells,
    XN, XH, PN: tl.constexpr, PH: tl.constexpr, SN: tl.constexpr, SH: tl.constexpr,
    SIZE: tl.constexpr, BLOCKS: tl.constexpr, IS_Q8: tl.constexpr,
):  # fmt: skip
    """One head of a row, with the rounding of the native backend."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    cell = tl.load(cells + row).to(tl.int64)
    b = tl.arange(0, BLOCKS)
    d = b[:, None] * Q8_BLOCK + tl.arange(0, Q8_BLOCK)[None, :]
    numbers = tl.load(x + row * XN + head * XH + d, mask=d < SIZE, other=0.0).to(tl.float32)
    if IS_Q8:
        scale = tl.div_rn(tl.max(tl.abs(numbers), 1), 127.0).to(tl.float16)
        tl.store(scales + cell * SN + head * SH + b, scale, mask=b * Q8_BLOCK < SIZE)
        wide = scale.to(tl.float32)
        inverse = tl.where(wide > 0.0, tl.div_rn(1.0, tl.where(wide > 0.0, wide, 1.0)), 0.0)
        numbers = tl.minimum(tl.maximum(numbers * inverse[:, None], -127.0), 127.0)
        numbers = (numbers + ROUNDER) - ROUNDER
    elif plane.dtype.element_ty.primitive_bitwidth == 8:
        numbers = tl.minimum(tl.maximum(numbers, -FP8_MOST), FP8_MOST)
    tl.store(plane + cell * PN + head * PH + d, numbers.to(plane.dtype.element_ty), mask=d < SIZE)


def launch_store(x: Any, plane: Plane, cells: Any) -> None:
    """Write rows [n, heads, size] to cells int32[n]."""
    n, heads, size = x.shape
    is_q8 = isinstance(plane, Q8)
    to, scales = (plane.numbers, plane.scales) if isinstance(plane, Q8) else (plane, plane)
    options = {} if is_interpreting() else {"enable_fp_fusion": False, "num_warps": 1}
    blocks = 1 << (-(-size // BLOCK) - 1).bit_length()
    launch(
        store_rows, (n, heads),
        x, to, scales, cells, x.stride(0), x.stride(1), to.stride(0), to.stride(1),
        scales.stride(0), scales.stride(1), SIZE=size, BLOCKS=blocks, IS_Q8=is_q8, **options,
    )  # fmt: skip


# The kernel that appends each row's cell to its view, as a decode step begins.

APPEND_ROWS = 128  # of a program


@triton.jit(do_not_specialize=["views", "places", "offsets", "lengths", "cells", "positions", "n"])
def append(views, places, offsets, lengths, cells, positions, n, BLOCK: tl.constexpr):
    """Entry lengths − 1 of each row's view becomes the row's cell."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_row = row < n
    entry = tl.load(offsets + row, mask=is_row, other=0) + tl.load(lengths + row, mask=is_row, other=1) - 1
    tl.store(views + entry, tl.load(cells + row, mask=is_row, other=0), mask=is_row)
    tl.store(places + entry, tl.load(positions + row, mask=is_row, other=0), mask=is_row)


def launch_append(views: Any, places: Any, offsets: Any, lengths: Any, cells: Any, positions: Any) -> None:
    """`views.append_cells` on a GPU."""
    n = len(cells)
    grid = (triton.cdiv(n, APPEND_ROWS),)
    launch(append, grid, views, places, offsets, lengths, cells, positions, n, APPEND_ROWS)
