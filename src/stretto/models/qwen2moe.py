"""Qwen 1.5 and 2 MoE: a shared expert with a gate of its own, weights that do not add up to one."""

from __future__ import annotations

from stretto.models import common
from stretto.models.common import Keys
from stretto.models.spec import ModelSpec


def read(keys: Keys) -> ModelSpec:
    """The spec of a qwen2moe file."""
    common.refuse_caps(keys)
    n_shared = keys.size("expert_shared_feed_forward_length", keys.size("feed_forward_length"))
    choice = common.routing(keys, normalize=keys.flag("expert_weights_norm", False))
    ffn = common.mixture(keys, choice, shared=common.shared_expert(n_shared), shared_gate=True)
    return common.uniform_decoder(keys, common.attention(keys, "halves", bias=True), ffn)
