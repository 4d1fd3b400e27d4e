"""Weights on their way into the GPU's cache while kernels run that read little.

A decode step of few rows is bound by the memory, which idles while norms, rotations and attention run: some
microseconds each, in every layer. So kernels that run just before a product have programs beside those that
compute, which ask for the beginning of the matrix. No result depends on it, and nothing waits.
Kernels of packed weights load their first ones early themselves, and those of lean.py are launched early:
both lose by it.
"""

from __future__ import annotations

from dataclasses import dataclass

from stretto.backends.torch.device import Tensor
from stretto.backends.torch.matrix import Dense, Matrix

PREFETCHED_BYTES = 3 << 20  # of a matrix; as measured on an H200: more slows down what runs meanwhile
MOST_ROWS = 8  # of a step that is bound by the memory
BLOCK = 128  # rows of a matrix that one program prefetches
UNIT = 16  # bytes that pieces and their sizes are multiples of


@dataclass(frozen=True)
class Prefetch:
    """Beginnings of a matrix's rows: how many rows, `stride` bytes apart, and `size` bytes of each."""

    weight: Tensor
    rows: int
    stride: int
    size: int

    def grid(self, rows: int) -> int:
        """How many programs for each row of a kernel ask for all of it."""
        return -(-self.rows // (BLOCK * rows))


def prefetch_of(matrix: Matrix) -> Prefetch | None:
    """What to ask for before a product, if anything: a share of the largest part that is not packed."""
    parts = [each for each in matrix.parts if isinstance(each, Dense) and each.weight.data_ptr() % UNIT == 0]
    if not parts:
        return None
    part = max(parts, key=lambda each: each.nbytes)
    stride = part.nbytes // part.rows
    size = int(stride * min(1.0, PREFETCHED_BYTES / matrix.nbytes)) // UNIT * UNIT
    return Prefetch(part.weight, part.rows, stride, size) if size and stride % UNIT == 0 else None


def prefetch_arguments(prefetch: Prefetch | None, unread: Tensor) -> tuple[Tensor, int, int, int]:
    """The arguments of kernels that may prefetch; without one they read none of them."""
    if prefetch is None:
        return unread, 1, 1, 1
    return prefetch.weight, prefetch.rows, prefetch.stride, prefetch.size
