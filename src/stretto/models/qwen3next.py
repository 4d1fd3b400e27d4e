"""Qwen3-Next: gated delta nets whose value heads stand with their key head, gated attention, experts."""

from __future__ import annotations

from stretto.models.common import Keys
from stretto.models.hybrids import delta_net, every_so_many, gated_attention, gated_experts
from stretto.models.spec import ModelSpec


def read(keys: Keys) -> ModelSpec:
    """The spec of a qwen3next file."""
    tensor = "blk.0.ssm_in.weight"
    if keys.has(tensor):
        reason = "the projections of its delta nets are one tensor; convert the model with a newer converter"
        raise keys.file.error(tensor, reason)
    net = delta_net(keys, tiled=False, fused=True)
    return every_so_many(keys, net, gated_attention(keys), gated_experts(keys))
