"""Quantised matrices in the form that ONNX takes: whole numbers in blocks, with a scale for each block.

A weight is scale × (q − zero) + offset, where zero is 8 for four bits and 128 for eight. The numbers of a
file's own blocks are kept: each format here is read without rounding anything. Formats with a minimum (Q4_1,
Q4_K, …) have an offset, which becomes a thin product of its own (products.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stretto.weights import formats
from stretto.weights.formats import Format

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

ZERO = {4: 8, 8: 128}


@dataclass(frozen=True)
class Blocks:
    """Rows of a matrix: w = scale × (q − zero) + offset."""

    bits: int
    q: Bytes  # uint8[rows, blocks, size]
    scale: Floats  # float32[rows, blocks]
    offset: Floats | None = None  # float32[rows, blocks]

    @property
    def size(self) -> int:
        """Numbers of a block."""
        return int(self.q.shape[2])

    @property
    def kind(self) -> tuple[int, int, bool]:
        """Matrices of one kind can be put together."""
        return self.bits, self.size, self.offset is not None

    def taken(self, order: NDArray[np.intp]) -> Blocks:
        """The same rows in another order."""
        offset = None if self.offset is None else self.offset[order]
        return Blocks(self.bits, self.q[order], self.scale[order], offset)

    def packed(self) -> Bytes:
        """q as MatMulNBits takes it: two numbers of four bits in a byte, the first in its low half."""
        if self.bits == 8:
            return self.q
        packed: Bytes = self.q[..., 0::2] | self.q[..., 1::2] << np.uint8(4)
        return packed

    def signed(self) -> NDArray[np.int8]:
        """q − zero."""
        return (self.q.astype(np.int16) - ZERO[self.bits]).astype(np.int8)

    def floats(self) -> Floats:
        """float32[rows, columns]: what the blocks stand for."""
        w = self.signed().astype(np.float32) * self.scale[..., None]
        if self.offset is not None:
            w += self.offset[..., None]
        return w.reshape(len(w), -1)


def concatenated(parts: list[Blocks]) -> Blocks:
    """The rows of several matrices of one kind."""
    offsets = [part.offset for part in parts if part.offset is not None]
    return Blocks(
        parts[0].bits,
        np.concatenate([part.q for part in parts]),
        np.concatenate([part.scale for part in parts]),
        np.concatenate(offsets) if offsets else None,
    )


def read_blocks(data: Bytes, fmt: Format) -> Blocks | None:
    """The blocks of rows of a file, uint8[rows, bytes of a row]; None for a format that is no such blocks."""
    reader = _READERS.get(fmt)
    if reader is None:
        return None
    return reader(np.ascontiguousarray(data).reshape(len(data), -1, fmt.size))


def rounded(weights: Floats, bits: int) -> Blocks:
    """Numbers rounded to so many bits, in blocks of 32."""
    fmt = Format.Q8_0 if bits == 8 else Format.Q4_0
    blocks = read_blocks(formats.quantize(weights, fmt), fmt)
    assert blocks is not None
    return blocks


# -- the formats: raw is uint8[rows, blocks, bytes of a block] --


def _half(raw: Bytes, at: int) -> Floats:
    """float32[rows, blocks]: the half float at a byte of each block."""
    return np.ascontiguousarray(raw[..., at : at + 2]).view(np.float16)[..., 0].astype(np.float32)


def _nibbles(raw: Bytes) -> Bytes:
    """The low halves of bytes, then the high ones."""
    return np.concatenate((raw & 15, raw >> 4), axis=-1)


def _fifth_bits(raw: Bytes) -> Bytes:
    """16 where a bit is set: uint8[rows, blocks, 32] from four bytes."""
    return np.unpackbits(raw, axis=-1, bitorder="little") << np.uint8(4)


def _q4_0(raw: Bytes) -> Blocks:
    return Blocks(4, _nibbles(raw[..., 2:]), _half(raw, 0))


def _q4_1(raw: Bytes) -> Blocks:
    scale = _half(raw, 0)
    return Blocks(4, _nibbles(raw[..., 4:]), scale, _half(raw, 2) + 8 * scale)


def _q5_0(raw: Bytes) -> Blocks:
    return Blocks(8, (_nibbles(raw[..., 6:]) | _fifth_bits(raw[..., 2:6])) + np.uint8(112), _half(raw, 0))


def _q5_1(raw: Bytes) -> Blocks:
    scale, q = _half(raw, 0), _nibbles(raw[..., 8:]) | _fifth_bits(raw[..., 4:8])
    return Blocks(8, q + np.uint8(112), scale, _half(raw, 2) + 16 * scale)


def _q8_0(raw: Bytes) -> Blocks:
    return Blocks(8, raw[..., 2:] ^ np.uint8(128), _half(raw, 0))


def _q4_k(raw: Bytes) -> Blocks:
    scale, least = _k_scales(raw)
    q = _nibbles(raw[..., 16:].reshape(*raw.shape[:2], 4, 32)).reshape(len(raw), -1, 32)
    return Blocks(4, q, scale, 8 * scale - least)


def _q5_k(raw: Bytes) -> Blocks:
    scale, least = _k_scales(raw)
    low = _nibbles(raw[..., 48:].reshape(*raw.shape[:2], 4, 32)).reshape(*raw.shape[:2], 8, 32)
    high = raw[..., None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & np.uint8(1)
    q = (low | high << np.uint8(4)).reshape(len(raw), -1, 32)
    return Blocks(8, q + np.uint8(112), scale, 16 * scale - least)


def _q6_k(raw: Bytes) -> Blocks:
    low = raw[..., :128].reshape(*raw.shape[:2], 2, 64)
    low = np.concatenate((low & 15, low >> 4), axis=-1).reshape(*raw.shape[:2], 2, 4, 32)
    high = raw[..., 128:192].reshape(*raw.shape[:2], 2, 1, 32)
    high = high >> np.arange(0, 8, 2, dtype=np.uint8)[:, None] & np.uint8(3)
    q = (low | high << np.uint8(4)).reshape(len(raw), -1, 16)
    scale = raw[..., 192:208].view(np.int8).astype(np.float32) * _half(raw, 208)[..., None]
    return Blocks(8, q + np.uint8(96), scale.reshape(len(raw), -1))


def _k_scales(raw: Bytes) -> tuple[Floats, Floats]:
    """float32[rows, blocks of 32]: scales and minima, packed as six bits each."""
    packed = raw[..., 4:16]
    low, high, both = packed[..., 0:4], packed[..., 4:8], packed[..., 8:12]
    scale = np.concatenate((low & 63, both & 15 | low >> 6 << np.uint8(4)), axis=-1)
    least = np.concatenate((high & 63, both >> 4 | high >> 6 << np.uint8(4)), axis=-1)
    scales = scale.astype(np.float32) * _half(raw, 0)[..., None]
    return scales.reshape(len(raw), -1), (least * _half(raw, 2)[..., None]).reshape(len(raw), -1)


_READERS = {
    Format.Q4_0: _q4_0,
    Format.Q4_1: _q4_1,
    Format.Q5_0: _q5_0,
    Format.Q5_1: _q5_1,
    Format.Q8_0: _q8_0,
    Format.Q4_K: _q4_k,
    Format.Q5_K: _q5_k,
    Format.Q6_K: _q6_k,
}
