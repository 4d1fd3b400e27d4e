"""Weights on their way into the GPU's cache while kernels run that read little.

A decode step of few rows is bound by the memory, which idles while norms, rotations and attention run: some
microseconds each, in every layer. A kernel on a stream of its own asks for the beginning of the matrix that
is multiplied next. It is a hint: no result depends on it, and only the end of the step waits for it.
Kernels of packed weights load their first ones early themselves, and those of lean.py are launched early:
both lose by hints.

    ahead = Prefetch(device)
    ahead(matrix)             # behind the last product, before the kernels that lead to the next one
    ahead.join()              # at the end of a captured step
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from stretto.backends.torch.device import Tensor
from stretto.backends.torch.launching import launch
from stretto.backends.torch.matrix import Dense, Matrix

HINT_BYTES = 4 << 20  # of a matrix; as measured on an H200: more slows down what runs meanwhile
MOST_ROWS = 8  # of a step that is bound by the memory
BLOCK = 128  # hints of a program
UNIT = 16  # bytes that pieces and their sizes are multiples of


class Prefetch:
    """Hints of one step after the other, on a stream of their own."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        self._is_used = False
        _launch(torch.empty(256, device=device), 1, 16, 16)  # compiled and loaded before a capture

    def __call__(self, matrix: Matrix) -> None:
        """Ask for the beginning of each row."""
        found = list(hints(matrix))
        if found:
            self._is_used = True
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                for hint in found:
                    _launch(*hint)

    def join(self) -> None:
        """Let the current stream wait for the hints: a captured stream has to end where it began."""
        if self._is_used:
            torch.cuda.current_stream().wait_stream(self._stream)


def _launch(tensor: Tensor, n: int, stride: int, size: int) -> None:
    from stretto.backends.torch.kernels.prefetch import prefetch

    launch(prefetch, (-(-n // BLOCK),), tensor, n, stride, size, BLOCK=BLOCK, num_warps=4)


def hints(matrix: Matrix) -> Iterator[tuple[Tensor, int, int, int]]:
    """Tensors, and the beginnings of rows to ask for: how many, bytes between them, and bytes of each."""
    share = min(1.0, HINT_BYTES / matrix.nbytes)
    for part in matrix.parts:
        if isinstance(part, Dense) and part.weight.data_ptr() % UNIT == 0:
            stride = part.nbytes // part.rows
            size = int(stride * share) // UNIT * UNIT
            if size and stride % UNIT == 0:
                yield part.weight, part.rows, stride, size
