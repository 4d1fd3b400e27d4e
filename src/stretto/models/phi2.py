"""Phi 1 and 2: branches side by side that read one layer norm, biases everywhere, also of the logits."""

from __future__ import annotations

from stretto.models import common
from stretto.models.common import Keys
from stretto.models.spec import ModelSpec


def read(keys: Keys) -> ModelSpec:
    """The spec of a phi2 file."""
    common.refuse_experts(keys)
    mixer = common.attention(keys, "halves", **common.fused_biases(keys))
    ffn, output_bias = common.ungated(keys, "gelu"), keys.has("output.bias")
    return common.layer_norm_decoder(keys, mixer, ffn, output_bias=output_bias)
