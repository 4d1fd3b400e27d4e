"""The forms `gqa` and `plain`: a batch of texts with their past K and V, by the names of Optimum.

input_ids, attention_mask, position_ids, past_key_values.N.key / .value → logits, present.N.key / .value
"""

from __future__ import annotations

from stretto.export.graph import MICROSOFT, Graph
from stretto.export.rope import Ropes
from stretto.export.scores import attend
from stretto.models.mixers import Attention

UNSEEN = -3.0e38  # finite: a row of padding sees nothing, and must not become NaN
GQA_HEAD_SIZES = 16  # GroupQueryAttention takes multiples of it


class PlainForm:
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

    def rotates(self, mixer: Attention) -> bool:
        """Whether `attend` applies the rope itself."""
        return False

    def takes_packed(self, mixer: Attention) -> bool:
        """Whether `attend` takes q, k and v as one tensor."""
        return False

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
        columns = graph.shared("Range", [zero, total, one])
        rows = graph.shared("Range", [graph.shared("Sub", [total, new]), total, one])
        back = graph.shared("Sub", [graph.shared("Unsqueeze", [rows, graph.integers(1)]), columns])
        seen = graph.shared("GreaterOrEqual", [back, zero])  # [n, total]
        if window is not None:
            seen = graph.op("And", [seen, graph.op("Less", [back, graph.number(window, "int64")])])
        there = graph.shared(
            "Unsqueeze", [graph.shared("Cast", [self._mask], to=9), graph.integers(1, 2, 3)]
        )  # bool[batch, 1, 1, 1, total]
        seen = graph.op("And", [there, seen])
        return graph.op("Where", [seen, graph.number(0.0), graph.number(UNSEEN)])

    def _length(self, x: str) -> str:
        """The second axis of x, a scalar."""
        shape = self._graph.shared("Shape", [x])
        return self._graph.shared("Gather", [shape, self._graph.number(1, "int64")], axis=0)

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
        count = graph.shared("ReduceSum", [self._mask, graph.integers(1)], keepdims=0)
        last = graph.cast(graph.shared("Sub", [count, graph.integers(1)]), "int32")
        return last, graph.cast(self._length(self._mask), "int32")


def _trimmed(inputs: list[str]) -> list[str]:
    """Inputs without empty ones at the end."""
    while inputs and not inputs[-1]:
        inputs.pop()
    return inputs
