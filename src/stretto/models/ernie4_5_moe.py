"""ERNIE 4.5 with experts: dense layers beside them, a softmax with a bias for the choice, shared experts."""

from __future__ import annotations

from stretto.models import common
from stretto.models.common import Keys
from stretto.models.spec import ModelSpec


def read(keys: Keys) -> ModelSpec:
    """The spec of an ernie4_5-moe file."""
    common.refuse_caps(keys)
    corrected = common.corrected(keys)
    ffn = common.mixture(keys, common.routing(keys, correction=corrected), shared=common.shared_experts(keys))
    mixer = common.attention(keys, "adjacent", **common.attention_biases(keys))
    return common.routed_decoder(keys, [mixer] * keys.n_layer, ffn)
