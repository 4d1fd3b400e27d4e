"""Ministral 3: a Llama whose queries grow with the logarithm of their position."""

from __future__ import annotations

from stretto.models.common import Keys, attention, head_size, plain_decoder, with_windows
from stretto.models.rope import read_rope
from stretto.models.spec import ModelSpec, Temperature
from stretto.weights.gguf import GGUF


def read(file: GGUF) -> ModelSpec:
    """The spec of a mistral3 file."""
    keys = Keys(file, "mistral3")
    slope = keys.number("attention.temperature_scale", 0.0)
    temperature = None
    if slope:
        temperature = Temperature(slope, keys.size("rope.scaling.original_context_length"))
    rope = read_rope(file, "mistral3", head_size(file, "mistral3"), "adjacent")
    return with_windows(keys, plain_decoder(keys, attention(keys, rope, temperature=temperature)))
