"""Qwen 2 and 2.5: Llama with biases on q, k and v, rotating halves."""

from __future__ import annotations

from stretto.models.common import Keys, attention, head_size, plain_decoder, with_windows
from stretto.models.rope import read_rope
from stretto.models.spec import ModelSpec
from stretto.weights.gguf import GGUF


def read(file: GGUF) -> ModelSpec:
    """The spec of a qwen2 file."""
    keys = Keys(file, "qwen2")
    rope = read_rope(file, "qwen2", head_size(file, "qwen2"), "halves")
    return with_windows(keys, plain_decoder(keys, attention(keys, rope, bias=True)))
