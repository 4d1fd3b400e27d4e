"""Qwen 3.5 with experts: softmax routing, and a shared expert with a gate."""

from __future__ import annotations

from stretto.models.common import Keys
from stretto.models.hybrids import delta_net, every_so_many, gated_experts
from stretto.models.qwen35 import attends
from stretto.models.spec import ModelSpec


def read(keys: Keys) -> ModelSpec:
    """The spec of a qwen35moe file."""
    net = delta_net(keys, tiled=True, fused=False)
    return every_so_many(keys, net, attends(keys), gated_experts(keys))
