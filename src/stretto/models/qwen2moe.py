"""Qwen 1.5 and 2 MoE: a shared expert with a gate of its own, weights that do not add up to one."""

from __future__ import annotations

from stretto.models.common import (
    Keys,
    attention,
    decoder,
    head_size,
    mixture,
    refuse_caps,
    routing,
    shared_expert,
)
from stretto.models.rope import read_rope
from stretto.models.spec import ModelSpec, plain_layer
from stretto.weights.gguf import GGUF


def read(file: GGUF) -> ModelSpec:
    """The spec of a qwen2moe file."""
    keys = Keys(file, "qwen2moe")
    refuse_caps(keys)
    rope = read_rope(file, "qwen2moe", head_size(file, "qwen2moe"), "halves")
    shared = keys.size("expert_shared_feed_forward_length", keys.size("feed_forward_length"))
    choice = routing(keys, normalize=keys.flag("expert_weights_norm", False))
    ffn = mixture(keys, choice, shared=shared_expert(shared), shared_gate=True)
    layer = plain_layer(attention(keys, rope, bias=True), ffn, keys.eps)
    return decoder(keys, (layer,) * keys.n_layer)
