"""EXAONE 3 and 3.5: a Llama whose files have the pairs of its rope in halves."""

from __future__ import annotations

from stretto.models.common import Keys, attention, attention_biases, plain_decoder
from stretto.models.spec import ModelSpec


def read(keys: Keys) -> ModelSpec:
    """The spec of an exaone file."""
    return plain_decoder(keys, attention(keys, "halves", **attention_biases(keys)))
