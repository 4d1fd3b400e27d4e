"""Seed-OSS: biases of q, k and v; the norm before the feed-forward has another name."""

from __future__ import annotations

from stretto.models.common import Keys, attention, attention_biases, decoder, head_size, refuse_experts
from stretto.models.rope import read_rope
from stretto.models.spec import Dense, Layer, ModelSpec, Norm
from stretto.weights.gguf import GGUF


def read(file: GGUF) -> ModelSpec:
    """The spec of a seed_oss file."""
    keys = Keys(file, "seed_oss")
    refuse_experts(keys)
    mixer = attention(
        keys,
        read_rope(file, "seed_oss", head_size(file, "seed_oss"), "halves"),
        **attention_biases(keys),
    )
    ffn, eps = Dense(keys.size("feed_forward_length")), keys.eps
    layer = Layer(mixer, ffn, Norm("attn_norm", eps), Norm("post_attention_norm", eps))
    return decoder(keys, (layer,) * keys.n_layer)
