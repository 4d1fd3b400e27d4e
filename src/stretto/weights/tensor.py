"""One tensor of a model file."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stretto.weights import formats
from stretto.weights.formats import Format


@dataclass(frozen=True)
class Tensor:
    """A tensor in the file. `shape` is in NumPy's order, rows first; `offset` is that of its first byte."""

    name: str
    shape: tuple[int, ...]
    format: Format
    offset: int
    data: NDArray[np.uint8]  # uint8[..., bytes of a row], a view into the mapped file

    @property
    def nbytes(self) -> int:
        """The bytes it takes in the file."""
        return self.data.nbytes

    def dequantize(self) -> NDArray[np.float32]:
        """A float32 copy of shape `shape`."""
        return formats.dequantize(self.data, self.format)
