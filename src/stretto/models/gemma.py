"""Gemma: scaled embeddings and a feed-forward gated by GELU. Files have its norms with the one added."""

from __future__ import annotations

from stretto.models.common import Keys, attention, decoder, head_size, refuse_experts
from stretto.models.rope import read_rope
from stretto.models.spec import Dense, ModelSpec, plain_layer
from stretto.weights.gguf import GGUF


def read(file: GGUF) -> ModelSpec:
    """The spec of a gemma file."""
    keys = Keys(file, "gemma")
    refuse_experts(keys)
    mixer = attention(keys, read_rope(file, "gemma", head_size(file, "gemma"), "halves"))
    layer = plain_layer(mixer, Dense(keys.size("feed_forward_length"), "gelu"), keys.eps)
    return decoder(keys, (layer,) * keys.n_layer, embedding_scale=keys.n_embd**0.5)
