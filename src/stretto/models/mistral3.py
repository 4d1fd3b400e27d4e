"""Ministral 3: a Llama whose queries grow with the logarithm of their position."""

from __future__ import annotations

from stretto.models.common import Keys, add_windows, attention, plain_decoder
from stretto.models.spec import ModelSpec, Temperature


def read(keys: Keys) -> ModelSpec:
    """The spec of a mistral3 file."""
    slope = keys.number("attention.temperature_scale", 0.0)
    temperature = None
    if slope:
        temperature = Temperature(slope, keys.size("rope.scaling.original_context_length"))
    return add_windows(keys, plain_decoder(keys, attention(keys, "adjacent", temperature=temperature)))
