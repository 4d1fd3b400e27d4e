"""Tensors in another format than their file has, made when they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod

import numpy as np
from numpy.typing import NDArray

from stretto import _native
from stretto.errors import ModelError
from stretto.weights.formats import READABLE, Format, check_writable
from stretto.weights.made_tensor import Kept
from stretto.weights.tensor import Tensor

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
PIECE_BYTES = 32 << 20  # of a tensor that are quantised at a time


class QuantisedTensor(Tensor):
    """A tensor in another format.

    `importance` weighs errors, float32[matrices, columns]; `done` is told how many numbers were written;
    `kept` holds the data that was read last, without it nothing is kept.
    """

    def __init__(
        self,
        source: Tensor,
        fmt: Format,
        quantizer: _native.Quantizer,
        importance: Floats | None = None,
        done: Callable[[int], None] | None = None,
        kept: Kept | None = None,
    ) -> None:
        check_writable(fmt)
        if source.format not in READABLE:
            raise ModelError(
                f"{source.format.name} cannot be converted to {fmt.name}", field=f"tensor {source.name!r}"
            )
        fmt.row_bytes(source.shape[-1])
        put = object.__setattr__  # the class is frozen
        put(self, "name", source.name)
        put(self, "shape", source.shape)
        put(self, "format", fmt)
        put(self, "offset", source.offset)
        put(self, "_source", source)
        put(self, "_quantizer", quantizer)
        put(self, "_importance", importance)
        put(self, "_done", done)
        put(self, "_kept", kept)

    _source: Tensor
    _quantizer: _native.Quantizer
    _importance: Floats | None
    _done: Callable[[int], None] | None
    _kept: Kept | None

    @property
    def data(self) -> Bytes:
        """uint8[..., bytes of a row], quantised now unless it was the last to be read."""
        return self._make() if self._kept is None else self._kept.get(self.name, self._make)

    def _make(self) -> Bytes:
        row = self.format.row_bytes(self.shape[-1])
        return np.concatenate(list(self.pieces())).reshape(*self.shape[:-1], row)

    @property
    def nbytes(self) -> int:
        """The bytes it takes."""
        return prod(self.shape[:-1]) * self.format.row_bytes(self.shape[-1])

    def pieces(self) -> Iterator[Bytes]:
        """The bytes of whole rows, piece after piece."""
        columns = self.shape[-1]
        rows = self._source.data.reshape(-1, self._source.format.row_bytes(columns))
        matrices = 1 if self._importance is None else len(self._importance)
        each = len(rows) // matrices
        step = max(1, PIECE_BYTES // rows.shape[1])
        for matrix in range(matrices):
            weights = None if self._importance is None else self._importance[matrix]
            for at in range(matrix * each, (matrix + 1) * each, step):
                piece = rows[at : min(at + step, (matrix + 1) * each)]
                yield self._convert(piece, weights, at)
                if self._done is not None:
                    self._done(len(piece) * columns)

    def _convert(self, rows: Bytes, importance: Floats | None, first: int) -> Bytes:
        try:
            return self._quantizer.convert(
                self._source.format.value,
                np.ascontiguousarray(rows).reshape(-1),
                self.format.value,
                self.shape[-1],
                importance,
            )
        except ValueError as error:
            raise ModelError(
                f"cannot be quantised to {self.format.name}: {error} (rows are counted from {first})",
                field=f"tensor {self.name!r}",
            ) from None
