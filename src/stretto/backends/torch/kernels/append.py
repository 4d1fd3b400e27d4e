"""The kernel that appends each row's cell to its view, as a decode step begins."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from stretto.backends.torch.launching import launch

BLOCK = 128  # rows of a program


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
    launch(append, (triton.cdiv(n, BLOCK),), views, places, offsets, lengths, cells, positions, n, BLOCK)
