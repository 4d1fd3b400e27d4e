"""Qwen 3: Llama with norms on each head's query and key, rotating halves."""

from __future__ import annotations

from stretto.models.common import Keys, add_windows, attention, attention_biases, plain_decoder, qk_norms
from stretto.models.spec import ModelSpec


def read(keys: Keys) -> ModelSpec:
    """The spec of a qwen3 file."""
    mixer = attention(keys, "halves", **attention_biases(keys), **qk_norms(keys.eps))
    return add_windows(keys, plain_decoder(keys, mixer))
