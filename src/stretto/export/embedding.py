"""The embedding of tokens, and the logits, which often have the same matrix: it is in the model once then."""

from __future__ import annotations

import numpy as np

from stretto.export.blocks import ZERO, Blocks
from stretto.export.graph import Graph
from stretto.export.products import Encoded, Products
from stretto.export.weights import Weights
from stretto.models.spec import ModelSpec

LEAST_BITS = 8  # of both matrices, unless the file has fewer
NAME = "token_embd"


class Embedding:
    """Adds the first and the last step of a model to a graph."""

    def __init__(self, graph: Graph, weights: Weights, products: Products, spec: ModelSpec) -> None:
        self._graph = graph
        self._weights = weights
        self._products = products
        self._spec = spec

    def _encoded(self, name: str) -> Encoded:
        return self._products.encode(self._weights.matrix(f"{name}.weight"), LEAST_BITS)

    def embed(self, tokens: str) -> str:
        """float32[batch, n, n_embd] of int64[batch, n]."""
        graph, encoded = self._graph, self._encoded(NAME)
        if isinstance(encoded, Blocks):
            x = self._from_blocks(tokens, encoded)
        elif self._products.precision == "f16":
            half = graph.constant(f"{NAME}.rows", encoded.astype(np.float16))
            x = graph.cast(graph.op("Gather", [half, tokens]), "float32")
        else:
            x = graph.op("Gather", [graph.constant(f"{NAME}.rows", encoded), tokens])
        return graph.scaled(x, self._spec.embedding_scale)

    def _from_blocks(self, tokens: str, blocks: Blocks) -> str:
        """The rows of the tokens, dequantised by standard operators."""
        graph = self._graph
        q = graph.op("Gather", [graph.constant(f"{NAME}.blocks", blocks.packed()), tokens])
        if blocks.bits == 4:  # [batch, n, blocks, size / 2] → [batch, n, blocks, size / 2, 2]
            low = graph.op("BitwiseAnd", [q, graph.number(15, "uint8")])
            high = graph.op("BitShift", [q, graph.number(4, "uint8")], direction="RIGHT")
            pair = [graph.op("Unsqueeze", [half, graph.integers(-1)]) for half in (low, high)]
            q = graph.reshape(graph.op("Concat", pair, axis=-1), 0, 0, blocks.q.shape[1], blocks.size)
        x = graph.op("Sub", [graph.cast(q, "float32"), graph.number(float(ZERO[blocks.bits]))])
        x = graph.op("Mul", [x, self._rows("scale", blocks.scale, tokens)])
        if blocks.offset is not None:
            x = graph.op("Add", [x, self._rows("offset.rows", blocks.offset, tokens)])
        return graph.reshape(x, 0, 0, -1)

    def _rows(self, kind: str, values: np.ndarray[tuple[int, ...], np.dtype[np.float32]], tokens: str) -> str:
        """float32[batch, n, blocks, 1]: a number for each block of the tokens' rows."""
        graph = self._graph
        rows = graph.op("Gather", [graph.constant(f"{NAME}.{kind}", values), tokens])
        return graph.op("Unsqueeze", [rows, graph.integers(-1)])

    def logits(self, x: str) -> str:
        """float32[batch, n, n_vocab] of final hidden states, as the output "logits"."""
        spec, graph = self._spec, self._graph
        y = self._output(x)
        y = graph.capped(graph.scaled(y, spec.logit_scale), spec.logit_cap)
        return graph.op("Identity", [y], output="logits")

    def _output(self, x: str) -> str:
        graph, spec = self._graph, self._spec
        name = NAME if spec.tied else "output"
        if not graph.has(f"{name}.rows"):  # blocks are shared by their name
            return self._products.product(x, name, self._encoded(name))
        w = graph.op("Transpose", [f"{name}.rows"], perm=[1, 0])
        if self._products.precision == "f16":
            return graph.cast(graph.op("MatMul", [graph.cast(x, "float16"), w]), "float32")
        return graph.op("MatMul", [x, w])
