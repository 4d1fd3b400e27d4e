"""GPT-2, and StarCoder with one K/V head: learned positions, layer norms, biases everywhere, GELU."""

from __future__ import annotations

from typing import Any

from stretto.models import common
from stretto.models.common import Keys
from stretto.models.spec import ModelSpec


def read(keys: Keys) -> ModelSpec:
    """The spec of a gpt2 or a starcoder file."""
    common.refuse_experts(keys)
    mixer = common.attention(keys, None, **common.fused_biases(keys))
    ffn = common.ungated(keys, "gelu")
    pieces: dict[str, Any] = dict(common.learned_positions(keys))
    return common.layer_norm_decoder(keys, mixer, ffn, **pieces)
