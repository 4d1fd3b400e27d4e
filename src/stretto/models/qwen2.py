"""Qwen 2 and 2.5: Llama with biases on q, k and v, rotating halves."""

from __future__ import annotations

from stretto.models.common import decoder, head_size
from stretto.models.rope import read_rope
from stretto.models.spec import ModelSpec
from stretto.weights.gguf import GGUF


def read(file: GGUF) -> ModelSpec:
    """The spec of a qwen2 file."""
    rope = read_rope(file, "qwen2", head_size(file, "qwen2"), "halves")
    return decoder(file, "qwen2", rope, qkv_bias=True)
