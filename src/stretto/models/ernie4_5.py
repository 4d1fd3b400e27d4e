"""ERNIE 4.5: a Llama, whose small models may have biases."""

from __future__ import annotations

from stretto.models.common import Keys, attention, attention_biases, head_size, plain_decoder
from stretto.models.rope import read_rope
from stretto.models.spec import ModelSpec
from stretto.weights.gguf import GGUF


def read(file: GGUF) -> ModelSpec:
    """The spec of an ernie4_5 file."""
    keys = Keys(file, "ernie4_5")
    rope = read_rope(file, "ernie4_5", head_size(file, "ernie4_5"), "adjacent")
    return plain_decoder(keys, attention(keys, rope, **attention_biases(keys)))
