"""Phi-3 and Phi-4: q, k and v in one matrix, gate and up in another, a rope with long and short factors."""

from __future__ import annotations

from stretto.models.common import Keys, attention, decoder, head_size, refuse_experts
from stretto.models.rope import read_rope
from stretto.models.spec import Dense, ModelSpec, plain_layer
from stretto.weights.gguf import GGUF


def read(file: GGUF) -> ModelSpec:
    """The spec of a phi3 file."""
    keys = Keys(file, "phi3")
    refuse_experts(keys)
    mixer = attention(
        keys,
        read_rope(file, "phi3", head_size(file, "phi3"), "halves"),
        window=keys.count("attention.sliding_window") or None,  # Phi-4 has a 0 for none
        fused=keys.has("blk.0.attn_qkv.weight"),
    )
    layer = plain_layer(mixer, Dense(keys.size("feed_forward_length"), fused=True), keys.eps)
    return decoder(keys, (layer,) * keys.n_layer)
