"""The weights of a model as the export reads them: matrices in their file's format, vectors as float32."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stretto.export.blocks import Blocks, read_blocks
from stretto.models.parts import Slice
from stretto.models.spec import ModelSpec
from stretto.weights import formats
from stretto.weights.formats import Format
from stretto.weights.gguf import GGUF

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Order = NDArray[np.intp]  # rows of a matrix, in the order that is wanted


@dataclass(frozen=True)
class Matrix:
    """Rows of a tensor, as the file has them; `order` is the order that they are wanted in."""

    name: str
    format: Format
    data: Bytes  # uint8[rows, bytes of a row]
    columns: int
    order: Order | None = None

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self.data)

    def floats(self) -> Floats:
        """float32[rows, columns]."""
        numbers = formats.dequantize(self.data, self.format)
        return numbers if self.order is None else numbers[self.order]

    def blocks(self) -> Blocks | None:
        """The file's own blocks, or None if its format has none that ONNX could take."""
        blocks = read_blocks(self.data, self.format)
        return blocks if blocks is None or self.order is None else blocks.taken(self.order)


class Weights:
    """The tensors of a spec, also those that are parts of others in the file."""

    def __init__(self, file: GGUF, spec: ModelSpec) -> None:
        self._tensors = file.tensors
        self._slices = spec.slices()

    def matrix(self, name: str, order: Order | None = None) -> Matrix:
        """The matrix of that name, which ends in ".weight"."""
        whole = self._slices.get(name)
        tensor = self._tensors[name if whole is None else whole.tensor]
        at = whole or Slice(name, 0, tensor.shape[0])
        data = tensor.data.reshape(-1, tensor.format.row_bytes(tensor.shape[-1]))
        return Matrix(name, tensor.format, data[at.first : at.first + at.rows], tensor.shape[-1], order)

    def vector(self, name: str, order: Order | None = None) -> Floats:
        """The numbers of a tensor in its own shape, or of a part of a vector."""
        whole = self._slices.get(name)
        tensor = self._tensors[name if whole is None else whole.tensor]
        numbers = tensor.dequantize()
        if whole is not None:
            numbers = numbers[whole.first : whole.first + whole.rows]
        return numbers if order is None else numbers[order]


def halves_order(heads: int, size: int, pairs: int) -> Order:
    """The order that puts the rotated numbers of each head from adjacent pairs into two halves.

    >>> halves_order(1, 6, 2)
    array([0, 2, 1, 3, 4, 5])
    """
    one = np.arange(size)
    one[: 2 * pairs] = one[: 2 * pairs].reshape(pairs, 2).T.reshape(-1)
    return (np.arange(heads)[:, None] * size + one).reshape(-1)
