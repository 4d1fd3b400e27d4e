"""Phi-3 and Phi-4: q, k and v in one matrix, gate and up in another, a rope with long and short factors."""

from __future__ import annotations

from stretto.models.common import Keys, attention, dense, refuse_experts, uniform_decoder
from stretto.models.spec import ModelSpec


def read(keys: Keys) -> ModelSpec:
    """The spec of a phi3 file."""
    refuse_experts(keys)
    window = keys.count("attention.sliding_window") or None  # Phi-4 has a 0 for none
    mixer = attention(keys, "halves", window=window, fused=keys.has("blk.0.attn_qkv.weight"))
    return uniform_decoder(keys, mixer, dense(keys, fused=True))
