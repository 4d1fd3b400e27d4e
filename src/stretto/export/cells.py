"""The form `cells`: a flat batch of tokens over pools of cells, as Stretto's backends have it.

    tokens[n], positions[n], cells[n], rows[wanted], visible[n, used], visible.WINDOW[n, used],
    cells.N.key / .value [used, heads × size] → logits[wanted, n_vocab], updated.N.key / .value

Token i is written to cell `cells[i]` and attends to the cells where `visible[i]` is true; layers with a
window have an input of their own. So a cell may belong to any number of texts, and several tokens may have
one position. `used` is how far into the pools a step looks. A pool and its update may be the same memory:
only the new rows are written then, and nothing is copied.
"""

from __future__ import annotations

from stretto.export.graph import Graph
from stretto.export.rope import Ropes
from stretto.models.mixers import Attention


class CellsForm:
    """Attention over pools of cells."""

    name = "cells"
    plain = False
    opset = 23

    def __init__(self, graph: Graph, ropes: Ropes, half: bool) -> None:
        self._graph = graph
        self._kind = "float16" if half else "float32"
        tokens = graph.input("tokens", "int64", ["n"])
        positions = graph.input("positions", "int64", ["n"])
        cells = graph.input("cells", "int64", ["n"])
        self._rows = graph.input("rows", "int64", ["wanted"])
        self.tokens = graph.op("Unsqueeze", [tokens, graph.integers(0)])
        self.positions = graph.op("Unsqueeze", [positions, graph.integers(0)])
        self._cells = graph.op("Unsqueeze", [cells, graph.integers(1)])
        self._outputs: list[tuple[str, int]] = []
        self._biases: dict[int | None, str] = {}

    def rotates(self, mixer: Attention) -> bool:
        """Never: keys are rotated before they are written."""
        return False

    def takes_packed(self, mixer: Attention) -> bool:
        """Never."""
        return False

    def attend(self, i: int, mixer: Attention, q: str, k: str, v: str) -> str:
        """Attention of layer i: [1, n, n_head × size]."""
        graph, width = self._graph, mixer.n_kv_head * mixer.head_size
        pools = []
        for name, x in (("key", k), ("value", v)):
            pool = graph.input(f"cells.{i}.{name}", self._kind, ["used", width])
            new = graph.reshape(x, -1, width)
            new = new if self._kind == "float32" else graph.cast(new, self._kind)
            both = graph.op("ScatterND", [pool, self._cells, new], output=f"updated.{i}.{name}")
            self._outputs.append((both, width))
            both = both if self._kind == "float32" else graph.cast(both, "float32")
            pools.append(graph.op("Unsqueeze", [both, graph.integers(0)]))
        return graph.op(
            "Attention",
            [q, *pools, self._bias(mixer.window)],
            q_num_heads=mixer.n_head,
            kv_num_heads=mixer.n_kv_head,
            scale=mixer.scale,
            softcap=mixer.cap,
        )

    def _bias(self, window: int | None) -> str:
        """float32[1, 1, n, used]: 0 where a cell is seen."""
        if window not in self._biases:
            graph = self._graph
            name = "visible" if window is None else f"visible.{window}"
            seen = graph.op("Unsqueeze", [graph.input(name, "bool", ["n", "used"]), graph.integers(0, 1)])
            unseen = graph.number(float("-inf"))
            self._biases[window] = graph.op("Where", [seen, graph.number(0.0), unseen])
        return self._biases[window]

    def hidden(self, x: str) -> str:
        """The hidden states that logits are wanted of: [wanted, n_embd]."""
        graph = self._graph
        return graph.op("Gather", [x, self._rows], axis=1)

    def finish(self, n_vocab: int) -> None:
        """Declare the outputs."""
        self._graph.output("logits", "float32", [1, "wanted", n_vocab])
        for name, width in self._outputs:
            self._graph.output(name, self._kind, ["used", width])
