"""Products with the matrices of a model, in the precision that was asked for.

| precision | a matrix is |
|---|---|
| f32 | float32 |
| f16 | half floats, and so are the products; sums between them are float32 |
| int8 | its file's own blocks of at most 8 bits, or rounded to 8 |
| int4 | its file's own blocks, if any matrix of the file's layers has at most 6 bits; else rounded to 4 |

With int4, embedding and output matrix have 8 bits. A file that has chosen few bits for some matrices has
chosen more for those that need them, so nothing of it is rounded to four.

A block with an offset (Q4_1, Q4_K, …) is never rounded again: besides the product with its whole numbers
there is a thin one, of the offsets with the sums of the blocks' inputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stretto.export.graph import MICROSOFT, Graph
from stretto.models.parts import Slice
from stretto.models.spec import ModelSpec
from stretto.weights import formats
from stretto.weights.formats import Format
from stretto.weights.gguf import GGUF
from stretto.weights.onnx.model import ACCURACY_LEVEL, BLOCK
from stretto.weights.tensor import Tensor

# Quantised matrices in the form that ONNX takes: whole numbers in blocks, with a scale for each block.
#
# A weight is scale × (q − zero) + offset, where zero is 8 for four bits and 128 for eight. The numbers of a
# file's own blocks are kept: each format here is read without rounding anything. Formats with a minimum
# (Q4_1, Q4_K, …) have an offset, which becomes a thin product of its own (products.py).

Bytes = NDArray[np.uint8]

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

    def reorder(self, order: NDArray[np.intp]) -> Blocks:
        """The same rows in another order."""
        offset = None if self.offset is None else self.offset[order]
        return Blocks(self.bits, self.q[order], self.scale[order], offset)

    def pack(self) -> Bytes:
        """q as MatMulNBits takes it: two numbers of four bits in a byte, the first in its low half."""
        if self.bits == 8:
            return self.q
        packed: Bytes = self.q[..., 0::2] | self.q[..., 1::2] << np.uint8(4)
        return packed

    def subtract_zero(self) -> NDArray[np.int8]:
        """q − zero."""
        return (self.q.astype(np.int16) - ZERO[self.bits]).astype(np.int8)

    def floats(self) -> Floats:
        """float32[rows, columns]: what the blocks stand for."""
        w = self.subtract_zero().astype(np.float32) * self.scale[..., None]
        if self.offset is not None:
            w += self.offset[..., None]
        return w.reshape(len(w), -1)


def join_rows(parts: list[Blocks]) -> Blocks:
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


def round_to_blocks(weights: Floats, bits: int) -> Blocks:
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


# The weights of a model as the export reads them: matrices in their file's format, vectors as float32.

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
        return blocks if blocks is None or self.order is None else blocks.reorder(self.order)


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


Floats = NDArray[np.float32]
Encoded = Blocks | Floats

FEW_BITS = 7  # fewer are what a file chooses that is quantised already


class Products:
    """Adds products to a graph."""

    def __init__(self, graph: Graph, precision: str, plain: bool, least_bits: int = 4) -> None:
        self._graph = graph
        self.precision = precision
        self._plain = plain
        self._least_bits = least_bits

    def encode(self, matrix: Matrix, least_bits: int = 4) -> Encoded:
        """A matrix as the precision has it; blocks are not rounded to fewer than `least_bits`."""
        if self.precision in ("f32", "f16") or matrix.columns % BLOCK:
            return matrix.floats()
        bits = max(least_bits, self._least_bits, int(self.precision.removeprefix("int")))
        blocks = matrix.blocks() if bits == 8 else None
        return round_to_blocks(matrix.floats(), bits) if blocks is None else blocks

    def multiply(self, x: str, matrices: Sequence[Matrix], bias: Floats | None = None) -> str:
        """x times several matrices, side by side: [batch, n, all rows]."""
        encoded = [self.encode(matrix) for matrix in matrices]
        kinds = {part.kind if isinstance(part, Blocks) else None for part in encoded}
        key = "+".join(matrix.name.removesuffix(".weight") for matrix in matrices)
        if len(kinds) == 1:
            y = self.product(x, key, _together(encoded))
        else:
            names = [matrix.name.removesuffix(".weight") for matrix in matrices]
            parts = [self.product(x, name, part) for name, part in zip(names, encoded, strict=True)]
            y = self._graph.op("Concat", parts, axis=-1)
        if bias is not None:
            y = self._graph.op("Add", [y, self._graph.constant(f"{key}.bias", bias)])
        return y

    def product(self, x: str, key: str, encoded: Encoded) -> str:
        """x [batch, n, columns] times an encoded matrix: float32[batch, n, rows]."""
        if not isinstance(encoded, Blocks):
            return self._floats(x, key, encoded)
        y = self._dequantized(x, key, encoded) if self._plain else self._blocks(x, key, encoded)
        if encoded.offset is None:
            return y
        graph, size = self._graph, encoded.size
        # One operator for the sums: means of the blocks, whose size is a power of two, so nothing is rounded.
        means = graph.op_once("AveragePool", [x], kernel_shape=(size,), strides=(size,))
        thin = graph.op("MatMul", [means, graph.constant(f"{key}.offset", size * encoded.offset.T)])
        return graph.op("Add", [y, thin])

    def _floats(self, x: str, key: str, weights: Floats) -> str:
        graph = self._graph
        if self.precision != "f16":
            return graph.op("MatMul", [x, graph.constant(f"{key}.weight", weights.T)])
        half = graph.constant(f"{key}.weight", weights.T.astype(np.float16))
        return graph.cast(graph.op("MatMul", [graph.cast(x, "float16"), half]), "float32")

    def _blocks(self, x: str, key: str, blocks: Blocks) -> str:
        """ONNX Runtime's product with blocks."""
        graph = self._graph
        rows, n, size = blocks.q.shape
        inputs = [
            x,
            graph.constant(f"{key}.blocks", blocks.pack()),
            graph.constant(f"{key}.scale", blocks.scale),
        ]
        return graph.op(
            "MatMulNBits",
            inputs,
            domain=MICROSOFT,
            K=n * size,
            N=rows,
            bits=blocks.bits,
            block_size=size,
            accuracy_level=ACCURACY_LEVEL,
        )

    def _dequantized(self, x: str, key: str, blocks: Blocks) -> str:
        """A product with a matrix that the standard operator makes of its blocks."""
        graph = self._graph
        rows, n, size = blocks.q.shape
        q = np.ascontiguousarray(blocks.subtract_zero().reshape(rows, n * size).T)  # [columns, rows]
        kind = None
        if blocks.bits == 4 and rows % 2 == 0:
            q, kind = (q[:, 0::2] & 15 | q[:, 1::2] << 4).view(np.uint8), "int4"
        w = graph.op(
            "DequantizeLinear",
            [graph.constant(f"{key}.columns", q, kind), graph.constant(f"{key}.scales", blocks.scale.T)],
            axis=0,
            block_size=size,
        )
        return graph.op("MatMul", [x, w])


def least_bits(tensors: Iterable[Tensor]) -> int:
    """The fewest bits that a file's matrices are rounded to: 8 where it has chosen few bits itself."""
    formats = {
        tensor.format for tensor in tensors if tensor.name.startswith("blk.") and len(tensor.shape) > 1
    }
    return 8 if any(8 * fmt.size / fmt.block < FEW_BITS for fmt in formats) else 4


def _together(parts: Sequence[Encoded]) -> Encoded:
    blocks = [part for part in parts if isinstance(part, Blocks)]
    if blocks:
        return join_rows(blocks)
    return np.concatenate([part for part in parts if not isinstance(part, Blocks)])
