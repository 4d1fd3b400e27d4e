"""Granite MoE (Granite 3 and 4 with experts): Granite's multipliers, a shared expert in some models."""

from __future__ import annotations

from stretto.models.common import Keys, attention, decoder, head_size, mixture, refuse_caps, shared_expert
from stretto.models.rope import read_rope
from stretto.models.spec import Layer, ModelSpec, Norm
from stretto.weights.gguf import GGUF


def read(file: GGUF) -> ModelSpec:
    """The spec of a granitemoe file."""
    keys = Keys(file, "granitemoe")
    refuse_caps(keys)
    size, eps = head_size(file, "granitemoe"), keys.eps
    # This family says with "finetuned" whether positions are rotated at all.
    rotated = keys.flag("rope.scaling.finetuned", True)
    rope = read_rope(file, "granitemoe", size, "adjacent") if rotated else None
    scale = keys.number("attention.scale", 0.0, 0.0, 1e6) or size**-0.5
    shared = shared_expert(keys.count("expert_shared_feed_forward_length"))
    layer = Layer(
        attention(keys, rope, scale=scale),
        mixture(keys, n_ff=keys.size("feed_forward_length"), shared=shared),
        Norm("attn_norm", eps),
        Norm("ffn_norm", eps),
        residual_scale=keys.number("residual_scale", 1.0, 1e-6, 1e6),
    )
    return decoder(
        keys,
        (layer,) * keys.n_layer,
        embedding_scale=keys.number("embedding_scale", 1.0, 1e-6, 1e6),
        logit_scale=1 / keys.number("logit_scale", 1.0, 1e-6, 1e6),
    )
