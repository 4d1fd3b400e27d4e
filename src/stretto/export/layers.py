"""The layers of a decoder: attention and feed-forward, each from its part of the spec."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from stretto.export.graph import MICROSOFT, Graph
from stretto.export.products import Floats, Order, Products, Weights, halves_order
from stretto.models.feed_forward import Dense
from stretto.models.mixers import Attention
from stretto.models.parts import Norm, Rope, Temperature

# Norms: ONNX Runtime's operators, or the standard ones they consist of.


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


# Rotary positions, from tables of cosines and sines: exact at every position, whatever the scaling.
#
# Numbers of a pair stand in two halves of a head: rows of matrices with adjacent pairs are put in that
# order (`halves_order`).


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
            graph.op_once("Unsqueeze", [graph.op_once("Gather", [table, positions]), graph.integers(2)])
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
        return graph.op("Mul", [q, graph.op_once("Gather", [graph.constant(name, table), positions])])


def row_order(rope: Rope | None, heads: int, size: int) -> Order | None:
    """The order that rows of queries or keys are taken in; None: as they are."""
    if rope is None or rope.pairs == "halves":
        return None
    return halves_order(heads, size, len(rope.frequencies))


class Form(Protocol):
    """What differs between the forms: inputs, outputs, and where attention finds K and V."""

    name: str
    plain: bool  # standard operators only
    opset: int
    tokens: str  # int64[batch, n]
    positions: str  # int64[batch, n]

    def rotates(self, mixer: Attention) -> bool:
        """Whether `attend` applies the rope itself."""
        return False

    def takes_packed(self, mixer: Attention) -> bool:
        """Whether `attend` takes q, k and v as one tensor."""
        return False

    def attend(self, i: int, mixer: Attention, q: str, k: str, v: str) -> str:
        """Attention of layer i: [batch, n, n_head × size]."""
        ...

    def hidden(self, x: str) -> str:
        """The hidden states that logits are wanted of."""
        ...

    def finish(self, n_vocab: int) -> None:
        """Declare the outputs."""
        ...


@dataclass(frozen=True)
class Parts:
    """What layers are made with."""

    graph: Graph
    weights: Weights
    products: Products
    norms: Norms
    ropes: Ropes
    form: Form


def attention(parts: Parts, i: int, mixer: Attention, x: str) -> str:
    """Attention of layer i to normalised rows x [batch, n, n_embd]."""
    prefix, form = f"blk.{i}.", parts.form
    heads = {"q": mixer.n_head, "k": mixer.n_kv_head, "v": mixer.n_kv_head}
    names = ["q", "k"] if mixer.values_are_keys else ["q", "k", "v"]
    orders = {
        name: None if name == "v" else row_order(mixer.rope, heads[name], mixer.head_size) for name in names
    }
    matrices = [parts.weights.matrix(f"{prefix}attn_{name}.weight", orders[name]) for name in names]
    bias: Floats | None = None
    if mixer.bias:
        each = [parts.weights.vector(f"{prefix}attn_{name}.bias", orders[name]) for name in names]
        bias = np.concatenate(each)
    qkv = parts.products.multiply(x, matrices, bias)

    rotated_inside = mixer.rope is not None and form.rotates(mixer) and not mixer.norm_after_rope
    norms = mixer.q_norm, mixer.k_norm, mixer.v_norm
    untouched = not any(norms) and mixer.temperature is None and not mixer.values_are_keys
    if untouched and form.takes_packed(mixer) and (rotated_inside or mixer.rope is None):
        mixed = form.attend(i, mixer, qkv, "", "")
    else:
        q, k, *rest = parts.graph.split(qkv, [heads[name] * mixer.head_size for name in names])
        v = rest[0] if rest else k
        v = parts.norms.apply_heads(mixer.v_norm, v, prefix, mixer.n_kv_head, mixer.head_size, None)
        q = _turned(parts, mixer, mixer.q_norm, q, prefix, mixer.n_head, rotated_inside)
        k = _turned(parts, mixer, mixer.k_norm, k, prefix, mixer.n_kv_head, rotated_inside)
        if mixer.temperature is not None:
            q = parts.ropes.heat(mixer.temperature, q, form.positions)
        mixed = form.attend(i, mixer, q, k, v)
    output = parts.weights.matrix(f"{prefix}attn_output.weight")
    output_bias = parts.weights.vector(f"{prefix}attn_output.bias") if mixer.output_bias else None
    return parts.products.multiply(mixed, [output], output_bias)


def _turned(
    parts: Parts, mixer: Attention, norm: Norm | None, x: str, prefix: str, heads: int, rotated_inside: bool
) -> str:
    """Queries or keys, normalised, and rotated unless the form does that."""
    order = row_order(mixer.rope, heads, mixer.head_size)

    def normalised(x: str) -> str:
        return parts.norms.apply_heads(norm, x, prefix, heads, mixer.head_size, order)

    if not mixer.norm_after_rope:
        x = normalised(x)
    if mixer.rope is not None and not rotated_inside:
        x = parts.ropes.rotate(mixer.rope, x, parts.form.positions, heads, mixer.head_size)
    return normalised(x) if mixer.norm_after_rope else x


def dense(parts: Parts, i: int, ffn: Dense, x: str) -> str:
    """The feed-forward of layer i."""
    graph, prefix, suffix = parts.graph, f"blk.{i}.", ffn.suffix

    def product(name: str, x: str) -> str:
        key = f"{prefix}ffn_{name}{suffix}"
        has_bias = ffn.has_down_bias if name == "down" else ffn.bias
        bias = parts.weights.vector(f"{key}.bias") if has_bias else None
        return parts.products.multiply(x, [parts.weights.matrix(f"{key}.weight")], bias)

    if not ffn.gated:
        return product("down", _activated(parts, ffn.activation, product("up", x)))
    keys = [f"{prefix}ffn_{name}{suffix}" for name in ("gate", "up")]
    bias = np.concatenate([parts.weights.vector(f"{key}.bias") for key in keys]) if ffn.bias else None
    both = parts.products.multiply(x, [parts.weights.matrix(f"{key}.weight") for key in keys], bias)
    gate, up = graph.split(both, [ffn.n_ff, ffn.n_ff])
    return product("down", graph.op("Mul", [_activated(parts, ffn.activation, gate), up]))


def _activated(parts: Parts, activation: str, x: str) -> str:
    """An activation of x."""
    graph = parts.graph
    if activation == "relu2":
        x = graph.op("Relu", [x])
        return graph.op("Mul", [x, x])
    if activation == "silu":
        if not parts.form.plain:
            return graph.op("QuickGelu", [x], domain=MICROSOFT, alpha=1.0)
        return graph.op("Mul", [x, graph.op("Sigmoid", [x])])
    if not parts.form.plain:
        return graph.op("Gelu", [x], approximate="none" if activation == "gelu_erf" else "tanh")
    if activation == "gelu_erf":
        shares = graph.op("Erf", [graph.scale(x, 0.5**0.5)])
        return graph.op("Mul", [graph.scale(x, 0.5), graph.op("Add", [shares, graph.number(1.0)])])
    cube = graph.op("Mul", [graph.op("Mul", [x, x]), x])
    inner = graph.op("Add", [x, graph.scale(cube, 0.044715)])
    tanh = graph.op("Tanh", [graph.scale(inner, (2 / np.pi) ** 0.5)])
    return graph.op("Mul", [graph.scale(x, 0.5), graph.op("Add", [tanh, graph.number(1.0)])])
