"""Weights on their way into the GPU's cache while kernels run that read little.

A decode step of few rows is bound by the memory, which idles while norms, rotations and attention run: some
microseconds each, in every layer. So kernels that run just before a product have programs beside those that
compute, which ask for the beginning of the matrix. It is a hint: no result depends on it, and nothing waits.
Kernels of packed weights load their first ones early themselves, and those of lean.py are launched early:
both lose by hints.
"""

from __future__ import annotations

from dataclasses import dataclass

from stretto.backends.torch.device import Tensor
from stretto.backends.torch.matrix import Dense, Matrix

HINT_BYTES = 3 << 20  # of a matrix; as measured on an H200: more slows down what runs meanwhile
MOST_ROWS = 8  # of a step that is bound by the memory
BLOCK = 128  # rows of a matrix that one program asks for
UNIT = 16  # bytes that pieces and their sizes are multiples of


@dataclass(frozen=True)
class Hint:
    """Beginnings of a matrix's rows: how many rows, `stride` bytes apart, and `size` bytes of each."""

    weight: Tensor
    rows: int
    stride: int
    size: int

    def grid(self, rows: int) -> int:
        """How many programs for each row of a kernel ask for all of it."""
        return -(-self.rows // (BLOCK * rows))


def hint_of(matrix: Matrix) -> Hint | None:
    """What to ask for before a product, if anything: a share of the largest part that is not packed."""
    parts = [each for each in matrix.parts if isinstance(each, Dense) and each.weight.data_ptr() % UNIT == 0]
    if not parts:
        return None
    part = max(parts, key=lambda each: each.nbytes)
    stride = part.nbytes // part.rows
    size = int(stride * min(1.0, HINT_BYTES / matrix.nbytes)) // UNIT * UNIT
    return Hint(part.weight, part.rows, stride, size) if size and stride % UNIT == 0 else None


def asking(hint: Hint | None, unread: Tensor) -> tuple[Tensor, int, int, int]:
    """The arguments of kernels that may ask; without a hint they read none of them."""
    return (unread, 1, 1, 1) if hint is None else (hint.weight, hint.rows, hint.stride, hint.size)
