"""Ling and Ring: shared experts; from version 2 q and k normalised, routing by sigmoid with a bias."""

from __future__ import annotations

from stretto.models import common
from stretto.models.common import Keys
from stretto.models.spec import ModelSpec


def read(keys: Keys) -> ModelSpec:
    """The spec of a bailingmoe file."""
    common.refuse_caps(keys)
    mixer = common.attention(keys, "adjacent", **common.fused_biases(keys))
    choice = common.routing(keys, normalize=keys.flag("expert_weights_norm", False))
    ffn = common.mixture(keys, choice, shared=common.shared_experts(keys))
    return common.routed_decoder(keys, [mixer] * keys.n_layer, ffn)


def read_second(keys: Keys) -> ModelSpec:
    """The spec of a bailingmoe2 file."""
    common.refuse_caps(keys)
    mixer = common.attention(keys, "halves", **common.fused_biases(keys), **common.qk_norms(keys.eps))
    choice = common.routing(
        keys,
        common.gating(keys, "sigmoid"),
        normalize=keys.flag("expert_weights_norm", False),
        correction=common.corrected(keys),
    )
    width = keys.size("expert_shared_feed_forward_length", common.expert_width(keys))
    shared = common.shared_expert(keys.count("expert_shared_count", most=common.MAX_EXPERTS) * width)
    ffn = common.mixture(keys, choice, shared=shared)
    return common.routed_decoder(keys, [mixer] * keys.n_layer, ffn)
