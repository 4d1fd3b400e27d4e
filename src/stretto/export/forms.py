"""The form `cells`: a flat batch of tokens over pools of cells, as Stretto's backends have it.

    tokens[n], positions[n], cells[n], rows[wanted], visible[n, used], visible.WINDOW[n, used],
    cells.N.key / .value [used, heads × size] → logits[wanted, n_vocab], updated.N.key / .value

Token i is written to cell `cells[i]` and attends to the cells where `visible[i]` is true; layers with a
window have an input of their own. So a cell may belong to any number of texts, and several tokens may have
one position. `used` is how far into the pools a step looks. A pool and its update may be the same memory:
only the new rows are written then, and nothing is copied.
"""

from __future__ import annotations

from stretto.export.graph import MICROSOFT, Graph
from stretto.export.layers import Form, Ropes
from stretto.models.mixers import Attention


class CellsForm(Form):
    """Attention over pools of cells.

    Capped scores are by standard operators: before 1.27 ONNX Runtime's Attention masks them and caps after.
    """

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
            pools.append(both if self._kind == "float32" else graph.cast(both, "float32"))
        bias = self._bias(mixer.window)
        if mixer.cap:
            pools = [graph.reshape(pool, 1, -1, mixer.n_kv_head, mixer.head_size) for pool in pools]
            keys, values = (graph.op("Transpose", [pool], perm=[0, 2, 1, 3]) for pool in pools)
            return attend(graph, mixer, q, keys, values, bias)
        pools = [graph.op("Unsqueeze", [pool, graph.integers(0)]) for pool in pools]
        return graph.op(
            "Attention",
            [q, *pools, bias],
            q_num_heads=mixer.n_head,
            kv_num_heads=mixer.n_kv_head,
            scale=mixer.scale,
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


# Attention by standard operators: scores, a softmax over them, and the mixture of values.


def attend(graph: Graph, mixer: Attention, q: str, keys: str, values: str, bias: str) -> str:
    """Each query's mixture of values: float32[batch, n, n_head × size].

    q [batch, n, n_head × size], keys and values [batch, kv heads, cells, size], bias [batch, 1, 1, n, cells]:
    0 where a query sees a cell, and a very low number elsewhere.
    """
    kv, group, size = mixer.n_kv_head, mixer.n_head // mixer.n_kv_head, mixer.head_size
    q = graph.reshape(graph.scale(q, mixer.scale), 0, 0, kv, group, size)
    q = graph.op("Transpose", [q], perm=[0, 2, 3, 1, 4])  # [batch, kv, group, n, size]
    keys = graph.op("Unsqueeze", [keys, graph.integers(2)])
    scores = graph.op("MatMul", [q, graph.op("Transpose", [keys], perm=[0, 1, 2, 4, 3])])
    scores = graph.op("Add", [graph.cap(scores, mixer.cap), bias])
    weights = graph.op("Softmax", [scores], axis=-1)
    mixed = graph.op("MatMul", [weights, graph.op("Unsqueeze", [values, graph.integers(2)])])
    mixed = graph.op("Transpose", [mixed], perm=[0, 3, 1, 2, 4])
    return graph.reshape(mixed, 0, 0, mixer.n_head * size)


# The forms `gqa` and `plain`: a batch of texts with their past K and V, by the names of Optimum.
#
# input_ids, attention_mask, position_ids, past_key_values.N.key / .value → logits, present.N.key / .value

UNSEEN = -3.0e38  # finite: a row of padding sees nothing, and must not become NaN
GQA_HEAD_SIZES = 16  # GroupQueryAttention takes multiples of it


class PlainForm(Form):
    """Attention by standard operators, over the past and the new tokens."""

    name = "plain"
    plain = True
    opset = 18

    def __init__(self, graph: Graph, ropes: Ropes, half: bool) -> None:
        self._graph = graph
        self._ropes = ropes
        self._kind = "float16" if half else "float32"
        self.tokens = graph.input("input_ids", "int64", ["batch_size", "sequence_length"])
        self._mask = graph.input("attention_mask", "int64", ["batch_size", "total_sequence_length"])
        self.positions = graph.input("position_ids", "int64", ["batch_size", "sequence_length"])
        self._outputs: list[tuple[str, list[int | str]]] = []
        self._biases: dict[int | None, str] = {}

    def attend(self, i: int, mixer: Attention, q: str, k: str, v: str) -> str:
        """Attention of layer i: [batch, n, n_head × size]."""
        graph = self._graph
        cache = []
        for name, x in (("key", k), ("value", v)):
            new = graph.reshape(x, 0, 0, mixer.n_kv_head, mixer.head_size)
            new = graph.op("Transpose", [new], perm=[0, 2, 1, 3])
            past, present = self._cache(i, name, mixer)
            both = graph.op("Concat", [past, self._stored(new)], axis=2, output=present)
            cache.append(both if self._kind == "float32" else graph.cast(both, "float32"))
        keys, values = cache
        return attend(graph, mixer, q, keys, values, self._bias(mixer.window))

    def _stored(self, x: str) -> str:
        """x in the type of the cache."""
        return x if self._kind == "float32" else self._graph.cast(x, self._kind)

    def _cache(self, i: int, name: str, mixer: Attention) -> tuple[str, str]:
        """The names of a layer's past and present keys or values."""
        heads, size = mixer.n_kv_head, mixer.head_size
        past = f"past_key_values.{i}.{name}"
        self._graph.input(past, self._kind, ["batch_size", heads, "past_sequence_length", size])
        present = f"present.{i}.{name}"
        self._outputs.append((present, ["batch_size", heads, "total_sequence_length", size]))
        return past, present

    def _bias(self, window: int | None) -> str:
        """float32[batch, 1, 1, n, total]: 0 where a token is seen."""
        if window not in self._biases:
            self._biases[window] = self._make_bias(window)
        return self._biases[window]

    def _make_bias(self, window: int | None) -> str:
        graph = self._graph
        total, new = self._length(self._mask), self._length(self.tokens)
        one, zero = graph.number(1, "int64"), graph.number(0, "int64")
        columns = graph.op_once("Range", [zero, total, one])
        rows = graph.op_once("Range", [graph.op_once("Sub", [total, new]), total, one])
        back = graph.op_once("Sub", [graph.op_once("Unsqueeze", [rows, graph.integers(1)]), columns])
        seen = graph.op_once("GreaterOrEqual", [back, zero])  # [n, total]
        if window is not None:
            seen = graph.op("And", [seen, graph.op("Less", [back, graph.number(window, "int64")])])
        there = graph.op_once(
            "Unsqueeze", [graph.op_once("Cast", [self._mask], to=9), graph.integers(1, 2, 3)]
        )  # bool[batch, 1, 1, 1, total]
        seen = graph.op("And", [there, seen])
        return graph.op("Where", [seen, graph.number(0.0), graph.number(UNSEEN)])

    def _length(self, x: str) -> str:
        """The second axis of x, a scalar."""
        shape = self._graph.op_once("Shape", [x])
        return self._graph.op_once("Gather", [shape, self._graph.number(1, "int64")], axis=0)

    def hidden(self, x: str) -> str:
        """The hidden states that logits are wanted of: all."""
        return x

    def finish(self, n_vocab: int) -> None:
        """Declare the outputs."""
        self._graph.output("logits", "float32", ["batch_size", "sequence_length", n_vocab])
        for name, shape in self._outputs:
            self._graph.output(name, self._kind, shape)


class GroupQueryForm(PlainForm):
    """Attention by ONNX Runtime's GroupQueryAttention; past and present may share a buffer.

    Heads of sizes that it refuses get the plain attention.
    """

    name = "gqa"
    plain = False
    opset = 21

    def _fits(self, mixer: Attention) -> bool:
        return mixer.head_size % GQA_HEAD_SIZES == 0

    def rotates(self, mixer: Attention) -> bool:
        """Whole heads only, and in float32: tables of half floats are too coarse."""
        rope = mixer.rope
        return (
            self._fits(mixer)
            and self._kind == "float32"
            and rope is not None
            and 2 * len(rope.frequencies) == mixer.head_size
        )

    def takes_packed(self, mixer: Attention) -> bool:
        """Where it applies."""
        return self._fits(mixer)

    def attend(self, i: int, mixer: Attention, q: str, k: str, v: str) -> str:
        """Attention of layer i; with k and v empty, q is all three."""
        if not self._fits(mixer):
            return super().attend(i, mixer, q, k, v)
        names = [self._cache(i, name, mixer) for name in ("key", "value")]
        turn = ["", "", ""]
        if self.rotates(mixer) and not mixer.norm_after_rope and mixer.rope is not None:
            turn = [*self._ropes.tables(mixer.rope), self.positions]
        out = self._graph.op_many(
            "GroupQueryAttention",
            _trimmed(
                [
                    *(self._stored(x) if x else "" for x in (q, k, v)),
                    *(past for past, _ in names),
                    *self._lengths(),
                    *turn,
                ]
            ),
            [f"attention.{i}", *(present for _, present in names)],
            domain=MICROSOFT,
            num_heads=mixer.n_head,
            kv_num_heads=mixer.n_kv_head,
            do_rotary=int(any(turn)),
            scale=mixer.scale,
            softcap=mixer.cap,
            local_window_size=mixer.window or -1,
        )[0]
        return out if self._kind == "float32" else self._graph.cast(out, "float32")

    def _lengths(self) -> tuple[str, str]:
        """int32[batch], the last index of each text, and int32, the length of the longest."""
        graph = self._graph
        count = graph.op_once("ReduceSum", [self._mask, graph.integers(1)], keepdims=0)
        last = graph.cast(graph.op_once("Sub", [count, graph.integers(1)]), "int32")
        return last, graph.cast(self._length(self._mask), "int32")


def _trimmed(inputs: list[str]) -> list[str]:
    """Inputs without empty ones at the end."""
    while inputs and not inputs[-1]:
        inputs.pop()
    return inputs
