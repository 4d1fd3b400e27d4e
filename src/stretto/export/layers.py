"""The layers of a decoder: attention and feed-forward, each from its part of the spec."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from stretto.export.graph import MICROSOFT, Graph
from stretto.export.norms import Norms
from stretto.export.products import Products
from stretto.export.rope import Ropes, row_order
from stretto.export.weights import Floats, Weights
from stretto.models.feed_forward import Dense
from stretto.models.mixers import Attention
from stretto.models.parts import Norm


class Form(Protocol):
    """What differs between the forms: inputs, outputs, and where attention finds K and V."""

    name: str
    plain: bool  # standard operators only
    opset: int
    tokens: str  # int64[batch, n]
    positions: str  # int64[batch, n]

    def rotates(self, mixer: Attention) -> bool:
        """Whether `attend` applies the rope itself."""
        ...

    def takes_packed(self, mixer: Attention) -> bool:
        """Whether `attend` takes q, k and v as one tensor."""
        ...

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
    qkv = parts.products.joined(x, matrices, bias)

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
    return parts.products.joined(mixed, [output], output_bias)


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
        return parts.products.joined(x, [parts.weights.matrix(f"{key}.weight")], bias)

    if not ffn.gated:
        return product("down", _activated(parts, ffn.activation, product("up", x)))
    keys = [f"{prefix}ffn_{name}{suffix}" for name in ("gate", "up")]
    bias = np.concatenate([parts.weights.vector(f"{key}.bias") for key in keys]) if ffn.bias else None
    both = parts.products.joined(x, [parts.weights.matrix(f"{key}.weight") for key in keys], bias)
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
        shares = graph.op("Erf", [graph.scaled(x, 0.5**0.5)])
        return graph.op("Mul", [graph.scaled(x, 0.5), graph.op("Add", [shares, graph.number(1.0)])])
    cube = graph.op("Mul", [graph.op("Mul", [x, x]), x])
    inner = graph.op("Add", [x, graph.scaled(cube, 0.044715)])
    tanh = graph.op("Tanh", [graph.scaled(inner, (2 / np.pi) ** 0.5)])
    return graph.op("Mul", [graph.scaled(x, 0.5), graph.op("Add", [tanh, graph.number(1.0)])])
