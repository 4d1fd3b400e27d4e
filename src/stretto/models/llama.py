"""Llama and models of its architecture: Llama 2 and 3, Mistral, TinyLlama, SmolLM."""

from __future__ import annotations

from stretto.models.common import Keys, attention, head_size, plain_decoder
from stretto.models.rope import read_rope
from stretto.models.spec import ModelSpec
from stretto.weights.gguf import GGUF


def read(file: GGUF) -> ModelSpec:
    """The spec of a llama file."""
    keys = Keys(file, "llama")
    rope = read_rope(file, "llama", head_size(file, "llama"), "adjacent")
    return plain_decoder(keys, attention(keys, rope))
