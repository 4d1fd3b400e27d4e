"""Gemma: scaled embeddings and a feed-forward gated by GELU. Files have its norms with the one added."""

from __future__ import annotations

from stretto.models.common import Keys, attention, dense, refuse_experts, uniform_decoder
from stretto.models.spec import ModelSpec


def read(keys: Keys) -> ModelSpec:
    """The spec of a gemma file."""
    refuse_experts(keys)
    ffn = dense(keys, activation="gelu")
    return uniform_decoder(keys, attention(keys, "halves"), ffn, embedding_scale=keys.n_embd**0.5)
