"""The number formats a GGUF tensor may have, and the way from and to float32.

A quantised format stores a row in *blocks* of `Format.block` numbers, each block in `Format.size` bytes:

    >>> Format.Q4_1.block, Format.Q4_1.size
    (32, 20)
    >>> quantize(np.zeros((2, 64), np.float32), Format.Q4_1).shape    # bytes of each row
    (2, 40)
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto import _native
from stretto.errors import InvalidRequest, ModelError

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


class Format(IntEnum):
    """A tensor's number format; the value is its code in the file.

    `block` is the number of elements in a block, `size` the bytes a block takes. All formats of the
    container are listed, so that any file can be described; `READABLE` are those that can be used.
    """

    block: int
    size: int

    F32 = 0, 1, 4
    F16 = 1, 1, 2
    Q4_0 = 2, 32, 18
    Q4_1 = 3, 32, 20
    Q5_0 = 6, 32, 22
    Q5_1 = 7, 32, 24
    Q8_0 = 8, 32, 34
    Q8_1 = 9, 32, 40
    Q2_K = 10, 256, 84
    Q3_K = 11, 256, 110
    Q4_K = 12, 256, 144
    Q5_K = 13, 256, 176
    Q6_K = 14, 256, 210
    Q8_K = 15, 256, 292
    IQ2_XXS = 16, 256, 66
    IQ2_XS = 17, 256, 74
    IQ3_XXS = 18, 256, 98
    IQ1_S = 19, 256, 50
    IQ4_NL = 20, 32, 18
    IQ3_S = 21, 256, 110
    IQ2_S = 22, 256, 82
    IQ4_XS = 23, 256, 136
    I8 = 24, 1, 1
    I16 = 25, 1, 2
    I32 = 26, 1, 4
    I64 = 27, 1, 8
    F64 = 28, 1, 8
    IQ1_M = 29, 256, 56
    BF16 = 30, 1, 2
    TQ1_0 = 34, 256, 54
    TQ2_0 = 35, 256, 66
    MXFP4 = 39, 32, 17
    NVFP4 = 40, 64, 36
    Q1_0 = 41, 128, 18
    Q2_0 = 42, 64, 18

    def __new__(cls, code: int, block: int = 0, size: int = 0) -> Format:  # noqa: D102
        member = int.__new__(cls, code)
        member._value_ = code
        member.block = block
        member.size = size
        return member

    def row_bytes(self, columns: int) -> int:
        """The bytes that a row of `columns` numbers takes."""
        if columns % self.block:
            raise InvalidRequest(
                f"a row of {columns} numbers cannot be {self.name}: it comes in blocks of {self.block}"
            )
        return columns // self.block * self.size


READABLE = frozenset(Format(code) for code in _native.dequantizable)
WRITABLE = frozenset(Format(code) for code in _native.quantizable)


def dequantize(data: Bytes, fmt: Format) -> Floats:
    """The numbers in `data`, bytes of whole blocks along the last axis, as float32.

    >>> dequantize(quantize(np.ones((1, 32), np.float32), Format.Q8_0), Format.Q8_0).shape
    (1, 32)
    """
    if fmt is Format.Q2_0:
        return dequantize(widen(data), Format.Q4_0)
    if fmt not in READABLE:
        raise ModelError(f"tensors in {fmt.name} are not supported; supported are {_names(READABLE)}")
    if data.dtype != np.uint8 or data.ndim == 0 or data.shape[-1] % fmt.size:
        raise InvalidRequest(
            f"data must be bytes (uint8) in whole blocks of {fmt.size} for {fmt.name}, "
            f"not {data.dtype}{list(data.shape)}"
        )
    shape = (*data.shape[:-1], data.shape[-1] // fmt.size * fmt.block)
    flat: Floats = _native.dequantize(fmt.value, np.ascontiguousarray(data).reshape(-1))
    return flat.reshape(shape)


def widen(data: Bytes) -> Bytes:
    """Rows of Q2_0 as Q4_0, exactly: d × (q − 1) of two bits is d × (q + 7 − 8) of four.

    No kernel reads Q2_0, so this is how its tensors are used; they take twice the memory.
    """
    if data.dtype != np.uint8 or data.ndim == 0 or data.shape[-1] % Format.Q2_0.size:
        raise InvalidRequest(f"Q2_0 is bytes (uint8) in whole blocks of {Format.Q2_0.size}")
    blocks = data.reshape(-1, Format.Q2_0.size)
    quants = (blocks[:, 2:, None] >> np.arange(0, 8, 2, dtype=np.uint8) & 3).reshape(-1, 2, 2, 16) + np.uint8(
        7
    )
    made = np.empty((len(blocks), 2, Format.Q4_0.size), np.uint8)
    made[:, :, :2] = blocks[:, None, :2]
    made[:, :, 2:] = quants[:, :, 0] | quants[:, :, 1] << 4
    return made.reshape(*data.shape[:-1], -1)


def quantize(array: NDArray[Any], fmt: Format, importance: NDArray[np.float32] | None = None) -> Bytes:
    """The numbers of `array` in format `fmt`, as bytes, row by row; `importance` weighs errors by column."""
    check_writable(fmt)
    floats = np.ascontiguousarray(array, dtype=np.float32)
    if floats.ndim == 0:
        raise InvalidRequest("array must have at least one axis")
    if not np.isfinite(floats).all():
        raise InvalidRequest(f"array holds NaN or infinity, which {fmt.name} cannot express")
    row, columns = fmt.row_bytes(floats.shape[-1]), floats.shape[-1]
    if not floats.size:
        return np.zeros((*floats.shape[:-1], row), np.uint8)
    quantizer = _native.Quantizer(1)
    flat: Bytes = quantizer.convert(
        Format.F32.value, floats.reshape(-1).view(np.uint8), fmt.value, columns, importance
    )
    return flat.reshape(*floats.shape[:-1], row)


def check_writable(fmt: Format) -> None:
    """Raise `InvalidRequest` for a format that cannot be written."""
    if fmt not in WRITABLE:
        raise InvalidRequest(f"cannot quantise to {fmt.name}; use one of {_names(WRITABLE)}")


def _names(formats: frozenset[Format]) -> str:
    return ", ".join(fmt.name for fmt in sorted(formats))
