"""Granite MoE (Granite 3 and 4 with experts): Granite's multipliers, a shared expert in some models."""

from __future__ import annotations

from stretto.models.common import Keys, mixture, refuse_caps, shared_expert
from stretto.models.granite import scaled_attention, scaled_decoder
from stretto.models.spec import ModelSpec, plain_layer


def read(keys: Keys) -> ModelSpec:
    """The spec of a granitemoe file."""
    refuse_caps(keys)
    shared = shared_expert(keys.count("expert_shared_feed_forward_length"))
    ffn = mixture(keys, n_ff=keys.size("feed_forward_length"), shared=shared)
    return scaled_decoder(keys, (plain_layer(scaled_attention(keys), ffn, keys.eps),) * keys.n_layer)
