"""Hunyuan with experts: q and k are normalised after the rope, every token has a shared expert."""

from __future__ import annotations

from stretto.models.common import (
    Keys,
    attention,
    attention_biases,
    mixture,
    qk_norms,
    refuse_caps,
    shared_expert,
    uniform_decoder,
)
from stretto.models.spec import ModelSpec


def read(keys: Keys) -> ModelSpec:
    """The spec of a hunyuan-moe file."""
    refuse_caps(keys)
    n_ff = keys.size("feed_forward_length")
    shared = shared_expert(keys.size("expert_shared_feed_forward_length", n_ff))
    ffn = mixture(keys, n_ff=keys.size("expert_feed_forward_length", n_ff), shared=shared)
    pieces = {**qk_norms(keys.eps), **attention_biases(keys)}
    return uniform_decoder(keys, attention(keys, "halves", norm_after_rope=True, **pieces), ffn)
