"""Jina's BERTs: version 2 with ALiBi instead of positions, version 3 with rotary positions."""

from __future__ import annotations

from stretto.models.common import Keys, dense, refuse_experts, slopes
from stretto.models.encoders import two_way, uniform_encoder
from stretto.models.spec import ModelSpec


def read_v2(keys: Keys) -> ModelSpec:
    """The spec of a jina-bert-v2 file."""
    refuse_experts(keys)
    up = keys.file.tensors.get("blk.0.ffn_up.weight")
    is_double = up is not None and up.shape[0] == 2 * keys.size("feed_forward_length")
    fused = is_double and not keys.has("blk.0.ffn_gate.weight")
    ffn = dense(
        keys,
        activation="gelu_erf",
        gated=fused or keys.has("blk.0.ffn_gate.weight"),
        fused=fused,
        bias=keys.has("blk.0.ffn_up.bias"),
        down_bias=keys.has("blk.0.ffn_down.bias"),
    )
    mixer = two_way(keys, None, alibi=slopes(keys.size("attention.head_count")))
    return uniform_encoder(keys, mixer, ffn)


def read_v3(keys: Keys) -> ModelSpec:
    """The spec of a jina-bert-v3 file."""
    refuse_experts(keys)
    ffn = dense(keys, activation="gelu_erf", gated=False, bias=keys.has("blk.0.ffn_up.bias"))
    return uniform_encoder(keys, two_way(keys, "halves"), ffn)
