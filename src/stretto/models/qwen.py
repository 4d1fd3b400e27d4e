"""Qwen 1 (2023): biases of q, k and v, which are one matrix; files have twice the feed-forward's width."""

from __future__ import annotations

from stretto.models import common
from stretto.models.common import Keys
from stretto.models.spec import Dense, ModelSpec


def read(keys: Keys) -> ModelSpec:
    """The spec of a qwen file."""
    common.refuse_experts(keys)
    mixer = common.attention(keys, "halves", **common.fused_biases(keys))
    return common.uniform_decoder(keys, mixer, Dense(keys.size("feed_forward_length") // 2 or 1))
