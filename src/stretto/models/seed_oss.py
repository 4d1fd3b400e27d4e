"""Seed-OSS: biases of q, k and v; the norm before the feed-forward has another name."""

from __future__ import annotations

from stretto.models.common import Keys, attention, attention_biases, decoder, dense, refuse_experts
from stretto.models.spec import Layer, ModelSpec, Norm


def read(keys: Keys) -> ModelSpec:
    """The spec of a seed_oss file."""
    refuse_experts(keys)
    mixer = attention(keys, "halves", **attention_biases(keys))
    norms = Norm("attn_norm", keys.eps), Norm("post_attention_norm", keys.eps)
    return decoder(keys, (Layer(mixer, dense(keys), *norms),) * keys.n_layer)
