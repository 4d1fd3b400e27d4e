"""Qwen 2 and 2.5: Llama with biases on q, k and v, rotating halves."""

from __future__ import annotations

from stretto.models.common import Keys, add_windows, attention, plain_decoder
from stretto.models.spec import ModelSpec


def read(keys: Keys) -> ModelSpec:
    """The spec of a qwen2 file."""
    return add_windows(keys, plain_decoder(keys, attention(keys, "halves", bias=True)))
