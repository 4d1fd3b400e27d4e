"""Qwen 3 MoE: Qwen 3 with experts."""

from __future__ import annotations

from stretto.models.common import Keys, attention, mixture, qk_norms, refuse_caps, routing, uniform_decoder
from stretto.models.feed_forward import Experts
from stretto.models.spec import ModelSpec


def read(keys: Keys) -> ModelSpec:
    """The spec of a qwen3moe file."""
    return uniform_decoder(keys, attention(keys, "halves", **qk_norms(keys.eps)), read_experts(keys))


def read_experts(keys: Keys) -> Experts:
    """The experts of all layers."""
    refuse_caps(keys)
    return mixture(keys, routing(keys, normalize=keys.flag("expert_weights_norm", True)))
