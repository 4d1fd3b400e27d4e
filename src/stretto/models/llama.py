"""Llama and models of its architecture: Llama 2 and 3, Mistral, TinyLlama, SmolLM."""

from __future__ import annotations

from stretto.models.common import decoder, head_size
from stretto.models.rope import read_rope
from stretto.models.spec import ModelSpec
from stretto.weights.gguf import GGUF


def read(file: GGUF) -> ModelSpec:
    """The spec of a llama file."""
    return decoder(file, "llama", read_rope(file, "llama", head_size(file, "llama"), "adjacent"))
