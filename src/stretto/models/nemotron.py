"""Nemotron 3 and 4, Minitron, and Jais 2: layer norms, relu² without a gate, a rope on a part of heads."""

from __future__ import annotations

from stretto.models import common
from stretto.models.common import Keys
from stretto.models.spec import ModelSpec


def read(keys: Keys) -> ModelSpec:
    """The spec of a nemotron or a jais2 file."""
    common.refuse_experts(keys)
    mixer = common.attention(keys, "halves", **common.fused_biases(keys))
    return common.layer_norm_decoder(keys, mixer, common.ungated(keys, "relu2"))
