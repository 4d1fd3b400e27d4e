"""OLMoE: q and k normalised as a whole, experts whose weights do not add up to one."""

from __future__ import annotations

from stretto.models.common import (
    Keys,
    attention,
    attention_biases,
    mixture,
    refuse_caps,
    routing,
    uniform_decoder,
    whole_norms,
)
from stretto.models.spec import ModelSpec


def read(keys: Keys) -> ModelSpec:
    """The spec of an olmoe file."""
    refuse_caps(keys)
    keys.refuse("attention.clamp_kqv", "clamped queries, keys and values")
    n_ff = keys.size("expert_feed_forward_length", keys.size("feed_forward_length"))
    choice = routing(keys, normalize=keys.flag("expert_weights_norm", False))
    mixer = attention(keys, "halves", **whole_norms(keys.eps), **attention_biases(keys))
    return uniform_decoder(keys, mixer, mixture(keys, choice, n_ff=n_ff))
