"""Granite 4: Mamba-2 layers and a few with attention, without rope; with experts or without."""

from __future__ import annotations

from stretto.models.common import Keys, attention_biases, mixture, shared_expert
from stretto.models.granite import scaled_attention, scaled_decoder
from stretto.models.hybrids import mamba2
from stretto.models.mixers import Mixer
from stretto.models.spec import Dense, Experts, ModelSpec, plain_layer


def read(keys: Keys) -> ModelSpec:
    """The spec of a granitehybrid file."""
    mamba, ffn = mamba2(keys, norm=True, conv_bias=True), _feed_forward(keys)
    mixers: list[Mixer] = [
        scaled_attention(keys, n_kv_head=n_kv_head, **attention_biases(keys, i)) if n_kv_head else mamba
        for i, n_kv_head in enumerate(keys.sizes("attention.head_count_kv", least=0))
    ]
    return scaled_decoder(keys, [plain_layer(mixer, ffn, keys.eps) for mixer in mixers])


def _feed_forward(keys: Keys) -> Dense | Experts:
    """A dense one, or experts with one that all tokens have."""
    n_ff = keys.size("feed_forward_length")
    if not keys.count("expert_count"):
        return Dense(n_ff)
    return mixture(keys, n_ff=n_ff, shared=shared_expert(keys.count("expert_shared_feed_forward_length")))
