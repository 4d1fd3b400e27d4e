"""dots.llm1: q and k normalised, dense first layers, routing by sigmoid with a bias, shared experts."""

from __future__ import annotations

from stretto.models import common
from stretto.models.common import Keys
from stretto.models.spec import Experts, ModelSpec


def read(keys: Keys) -> ModelSpec:
    """The spec of a dots1 file."""
    common.refuse_caps(keys)
    mixer = common.attention(keys, "halves", **common.qk_norms(keys.eps), **common.attention_biases(keys))
    return common.add_windows(keys, common.routed_decoder(keys, [mixer] * keys.n_layer, experts(keys)))


def experts(keys: Keys) -> Experts:
    """The experts of all layers that have a router."""
    normalize = keys.flag("expert_weights_norm", False)
    pieces = {"normalize": normalize, "correction": common.corrected(keys)}
    choice = common.routing(keys, common.gating(keys, "sigmoid"), **pieces)
    return common.mixture(keys, choice, shared=common.shared_experts(keys))
