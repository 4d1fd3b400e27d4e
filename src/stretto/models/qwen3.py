"""Qwen 3: Llama with norms on each head's query and key, rotating halves."""

from __future__ import annotations

from stretto.models.common import (
    Keys,
    attention,
    attention_biases,
    head_size,
    plain_decoder,
    qk_norms,
    with_windows,
)
from stretto.models.rope import read_rope
from stretto.models.spec import ModelSpec
from stretto.weights.gguf import GGUF


def read(file: GGUF) -> ModelSpec:
    """The spec of a qwen3 file."""
    keys = Keys(file, "qwen3")
    rope = read_rope(file, "qwen3", head_size(file, "qwen3"), "halves")
    return with_windows(
        keys, plain_decoder(keys, attention(keys, rope, **attention_biases(keys), **qk_norms(keys.eps)))
    )
