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

import numpy as np
from numpy.typing import NDArray

from stretto.export.blocks import Blocks, concatenated, rounded
from stretto.export.graph import MICROSOFT, Graph
from stretto.export.weights import Matrix
from stretto.weights.onnx.nbits import ACCURACY_LEVEL, BLOCK
from stretto.weights.tensor import Tensor

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
        return rounded(matrix.floats(), bits) if blocks is None else blocks

    def joined(self, x: str, matrices: Sequence[Matrix], bias: Floats | None = None) -> str:
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
        means = graph.shared("AveragePool", [x], kernel_shape=(size,), strides=(size,))
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
            graph.constant(f"{key}.blocks", blocks.packed()),
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
        q = np.ascontiguousarray(blocks.signed().reshape(rows, n * size).T)  # [columns, rows]
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
        return concatenated(blocks)
    return np.concatenate([part for part in parts if not isinstance(part, Blocks)])
