"""Norms: ONNX Runtime's operators, or the standard ones they consist of."""

from __future__ import annotations

import numpy as np

from stretto.export.graph import MICROSOFT, Graph
from stretto.export.weights import Floats, Order, Weights
from stretto.models.parts import Norm


class Norms:
    """Adds norms to a graph. `prefix` is that of the layer whose tensors a norm names."""

    def __init__(self, graph: Graph, weights: Weights, plain: bool) -> None:
        self._graph = graph
        self._weights = weights
        self._plain = plain

    def apply(self, norm: Norm | None, x: str, prefix: str, width: int) -> str:
        """x [batch, n, width], normalised along its last axis; x itself where there is no norm."""
        if norm is None:
            return x
        weight, bias = self._tensors(norm, prefix, width)
        return self._normalised(norm, x, prefix + norm.name, weight, bias)

    def add_and_apply(
        self, norm: Norm | None, x: str, addend: str | None, prefix: str, width: int
    ) -> tuple[str, str]:
        """(norm(x + addend), x + addend), in one operator where there is one."""
        if addend is None:
            return self.apply(norm, x, prefix, width), x
        if norm is None or norm.kind != "rms" or self._plain:
            x = self._graph.op("Add", [x, addend])
            return self.apply(norm, x, prefix, width), x
        weight, _ = self._tensors(norm, prefix, width)
        key = prefix + norm.name
        both = self._graph.op_many(
            "SkipSimplifiedLayerNormalization",
            [x, addend, self._graph.constant(f"{key}.weight", weight)],
            [f"{key}.out", "", "", f"{key}.sum"],
            domain=MICROSOFT,
            epsilon=norm.eps,
        )
        return both[0], both[3]

    def apply_heads(
        self, norm: Norm | None, x: str, prefix: str, heads: int, size: int, order: Order | None
    ) -> str:
        """x [batch, n, heads × size], normalised over what the norm says; `order` is that of its numbers."""
        if norm is None:
            return x
        graph, key = self._graph, prefix + norm.name
        if norm.over == "all":
            weight, bias = self._tensors(norm, prefix, heads * size)
            if order is not None:
                weight, bias = weight[order], None if bias is None else bias[order]
            return self._normalised(norm, x, key, weight, bias)
        y = graph.reshape(x, 0, 0, heads, size)
        # Of one head, with weights that all share, or [heads, size]: multiplied with afterwards.
        weight, bias = self._tensors(norm, prefix, size)
        if order is not None:
            weight = weight[..., order[:size]]
            bias = None if bias is None else bias[..., order[:size]]
        if norm.over == "head":
            y = self._normalised(norm, y, key, weight, bias)
        else:
            y = self._normalised(norm, y, f"{key}.each", np.ones(size, np.float32), None)
            y = graph.op("Mul", [y, graph.constant(f"{key}.weight", weight)])
            if bias is not None:
                y = graph.op("Add", [y, graph.constant(f"{key}.bias", bias)])
        return graph.reshape(y, 0, 0, heads * size)

    def _tensors(self, norm: Norm, prefix: str, width: int) -> tuple[Floats, Floats | None]:
        weight = np.ones(width, np.float32)
        if norm.weight:
            weight = self._weights.vector(prefix + norm.weight_name)
        return weight, self._weights.vector(f"{prefix}{norm.name}.bias") if norm.bias else None

    def _normalised(self, norm: Norm, x: str, key: str, weight: Floats, bias: Floats | None) -> str:
        """x, normalised along its last axis."""
        graph = self._graph
        w = graph.constant(f"{key}.weight", weight)
        if norm.kind == "layer":
            inputs = [x, w] + ([] if bias is None else [graph.constant(f"{key}.bias", bias)])
            return graph.op("LayerNormalization", inputs, axis=-1, epsilon=norm.eps)
        if not self._plain:
            return graph.op("SimplifiedLayerNormalization", [x, w], axis=-1, epsilon=norm.eps)
        mean = graph.op("ReduceMean", [graph.op("Mul", [x, x]), graph.integers(-1)], keepdims=1)
        root = graph.op("Sqrt", [graph.op("Add", [mean, graph.number(norm.eps)])])
        return graph.op("Mul", [graph.op("Div", [x, root]), w])
