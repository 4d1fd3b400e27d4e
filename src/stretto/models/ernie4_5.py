"""ERNIE 4.5: a Llama, whose small models may have biases."""

from __future__ import annotations

from stretto.models.common import Keys, attention, attention_biases, plain_decoder
from stretto.models.spec import ModelSpec


def read(keys: Keys) -> ModelSpec:
    """The spec of an ernie4_5 file."""
    return plain_decoder(keys, attention(keys, "adjacent", **attention_biases(keys)))
