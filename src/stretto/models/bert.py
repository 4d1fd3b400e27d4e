"""BERT, and RoBERTa and XLM-R, which llama.cpp's files call the same: learned positions, exact GELU."""

from __future__ import annotations

from stretto.models.common import Keys, dense, learned_positions, refuse_experts
from stretto.models.encoders import two_way, uniform_encoder
from stretto.models.spec import ModelSpec


def read(keys: Keys) -> ModelSpec:
    """The spec of a bert file."""
    refuse_experts(keys)
    ffn = dense(keys, activation="gelu_erf", gated=False, bias=keys.has("blk.0.ffn_up.bias"))
    return uniform_encoder(keys, two_way(keys, None), ffn, **learned_positions(keys))
