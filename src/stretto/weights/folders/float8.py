"""Weights in FP8 with scales: one scale for each block of 128 × 128 numbers, for each row, or for all.

They become bfloat16, whose rounding is far below that of three or two bits of mantissa.
"""

from __future__ import annotations

from collections.abc import Container
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stretto.errors import ModelError
from stretto.weights import formats
from stretto.weights.formats import Format
from stretto.weights.made_tensor import Kept
from stretto.weights.safetensors_file import Stored
from stretto.weights.tensor import Tensor

# Of a weight `x`: DeepSeek's and Qwen's folders have inverse scales, those of compressed-tensors plain ones;
# the weight is multiplied by either.
SCALES = ("_scale_inv", "_scale")
_SCALE_FORMATS = {"F32": Format.F32, "F16": Format.F16, "BF16": Format.BF16}


def scale_name(name: str, stored: Container[str]) -> str | None:
    """The name of the scales of a tensor, if there are any."""
    return next((name + end for end in SCALES if name + end in stored), None)


def _table(kind: str) -> NDArray[np.float32]:
    """The value of each byte: E4M3 has no infinities and one NaN, E5M2 is the upper half of float16."""
    codes = np.arange(256, dtype=np.uint16)
    if kind == "F8_E5M2":
        return (codes << 8).view(np.float16).astype(np.float32)
    sign = np.where(codes & 0x80, -1.0, 1.0)
    exponent, mantissa = (codes >> 3 & 15).astype(np.int32), (codes & 7) / 8.0
    values = np.where(exponent == 0, np.ldexp(mantissa, -6), np.ldexp(1.0 + mantissa, exponent - 7))
    values[codes & 0x7F == 0x7F] = np.nan
    return np.asarray(sign * values, np.float32)


class Float8Tensor(Tensor):
    """A matrix in FP8 as bfloat16, made when its data is read."""

    _stored: Stored
    _scale: Stored
    _kept: Kept
    _path: Path

    def __init__(self, name: str, stored: Stored, scale: Stored, kept: Kept, path: Path) -> None:
        put = object.__setattr__  # the class is frozen
        put(self, "name", name)
        put(self, "shape", stored.shape)
        put(self, "format", Format.BF16)
        put(self, "offset", 0)
        put(self, "_stored", stored)
        put(self, "_scale", scale)
        put(self, "_kept", kept)
        put(self, "_path", path)
        self._blocks()

    def renamed(self, name: str) -> Float8Tensor:
        """The same tensor under another name."""
        return Float8Tensor(name, self._stored, self._scale, self._kept, self._path)

    @property
    def data(self) -> NDArray[np.uint8]:
        """uint8[..., bytes of a row], made now unless it was the last to be read."""
        return self._kept.get(self.name, self._make)

    @property
    def nbytes(self) -> int:
        """The bytes it takes."""
        return 2 * prod(self.shape)

    def _blocks(self) -> tuple[int, int]:
        """How many rows and columns a scale is for."""
        given = self._scale.shape
        if self._scale.type in _SCALE_FORMATS and len(self.shape) == 2:
            if prod(given) == 1:
                return self.shape
            if given in ((self.shape[0],), (self.shape[0], 1)):
                return 1, self.shape[1]
            if len(given) == 2 and all(given):
                for size in (128, 64, 32):
                    if given == tuple(-(-n // size) for n in self.shape):
                        return size, size
        raise ModelError(
            f"scales of {self._scale.type}{list(given)} do not fit a matrix of {list(self.shape)}",
            path=self._path,
            field=f"tensor {self._scale.name!r}",
        )

    def _make(self) -> NDArray[np.uint8]:
        n_rows, n_columns = self._blocks()
        rows, columns = self.shape
        numbers = _table(self._stored.type)[self._stored.data].reshape(self.shape)
        scales = formats.dequantize(self._scale.data, _SCALE_FORMATS[self._scale.type])
        scales = scales.reshape(-(-rows // n_rows), -(-columns // n_columns))
        spread = scales.repeat(n_rows, axis=0)[:rows].repeat(n_columns, axis=1)[:, :columns]
        return _bfloat16(numbers * spread).view(np.uint8)


def _bfloat16(numbers: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The upper halves of float32 numbers, rounded to the nearest, ties to even."""
    bits = np.ascontiguousarray(numbers, np.float32).view(np.uint32)
    upper = (bits + (np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1)))) >> np.uint32(16)
    return upper.astype(np.uint16)
