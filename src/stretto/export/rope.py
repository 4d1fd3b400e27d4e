"""Rotary positions, from tables of cosines and sines: exact at every position, whatever the scaling.

Numbers of a pair stand in two halves of a head: rows of matrices with adjacent pairs are put in that order
(`halves_order`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stretto.export.graph import MICROSOFT, Graph
from stretto.export.weights import Order, halves_order
from stretto.models.parts import Rope, Temperature


class Ropes:
    """Adds rotations to a graph."""

    def __init__(self, graph: Graph, context: int, plain: bool) -> None:
        self._graph = graph
        self._context = context
        self._plain = plain
        self._known: dict[Rope, str] = {}

    def tables(self, rope: Rope) -> tuple[str, str]:
        """float32[context, pairs]: cosines and sines of every position, times the magnitude."""
        key = self._known.setdefault(rope, f"rope.{len(self._known)}")
        if not self._graph.has(f"{key}.cos"):
            angles = rope.angles(np.arange(self._context))
            for name, table in (("cos", np.cos(angles)), ("sin", np.sin(angles))):
                self._graph.constant(f"{key}.{name}", (table * rope.magnitude).astype(np.float32))
        return f"{key}.cos", f"{key}.sin"

    def rotate(self, rope: Rope, x: str, positions: str, heads: int, size: int) -> str:
        """x [batch, n, heads × size], rotated by positions [batch, n]."""
        if self._plain:
            return self._rotate_plainly(rope, x, positions, heads, size)
        rotated = 2 * len(rope.frequencies)
        part: dict[str, Any] = {} if rotated == size else {"rotary_embedding_dim": rotated}
        cos, sin = self.tables(rope)
        inputs = [x, positions, cos, sin]
        return self._graph.op("RotaryEmbedding", inputs, domain=MICROSOFT, num_heads=heads, **part)

    def _rotate_plainly(self, rope: Rope, x: str, positions: str, heads: int, size: int) -> str:
        graph, pairs = self._graph, len(rope.frequencies)
        # [batch, n, 1, pairs]: the same for all heads
        cos, sin = (
            graph.shared("Unsqueeze", [graph.shared("Gather", [table, positions]), graph.integers(2)])
            for table in self.tables(rope)
        )
        sizes = [pairs, pairs] + ([size - 2 * pairs] if size > 2 * pairs else [])
        a, b, *rest = graph.split(graph.reshape(x, 0, 0, heads, size), sizes)
        first = graph.op("Sub", [graph.op("Mul", [a, cos]), graph.op("Mul", [b, sin])])
        second = graph.op("Add", [graph.op("Mul", [a, sin]), graph.op("Mul", [b, cos])])
        return graph.reshape(graph.op("Concat", [first, second, *rest], axis=-1), 0, 0, heads * size)

    def heat(self, temperature: Temperature, q: str, positions: str) -> str:
        """Queries [batch, n, width], times the factor of their positions."""
        graph = self._graph
        steps = np.floor((np.arange(self._context) + temperature.offset) / temperature.length)
        table = (1 + temperature.slope * np.log1p(steps)).astype(np.float32)[:, None]
        name = f"temperature.{temperature.slope}.{temperature.length}.{temperature.offset}"
        return graph.op("Mul", [q, graph.shared("Gather", [graph.constant(name, table), positions])])


def row_order(rope: Rope | None, heads: int, size: int) -> Order | None:
    """The order that rows of queries or keys are taken in; None: as they are."""
    if rope is None or rope.pairs == "halves":
        return None
    return halves_order(heads, size, len(rope.frequencies))
