"""Hunyuan 3: q and k normalised, dense first layers, routing by sigmoid with a bias, a shared expert."""

from __future__ import annotations

from stretto.models import common
from stretto.models.common import Keys
from stretto.models.spec import ModelSpec


def read(keys: Keys) -> ModelSpec:
    """The spec of a hy_v3 file."""
    common.refuse_caps(keys)
    mixer = common.attention(keys, "halves", **common.qk_norms(keys.eps), **common.attention_biases(keys))
    choice = common.routing(
        keys,
        common.gating(keys, "sigmoid"),
        normalize=keys.flag("expert_weights_norm", False),
        correction=common.corrected(keys),
        bare=any(keys.has(f"blk.{i}.exp_probs_b") for i in range(keys.n_layer)),
    )
    shared = common.shared_expert(keys.count("expert_shared_feed_forward_length"))
    ffn = common.mixture(keys, choice, shared=shared)
    return common.routed_decoder(keys, [mixer] * keys.n_layer, ffn)
