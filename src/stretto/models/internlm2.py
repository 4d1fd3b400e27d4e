"""InternLM 2 and 2.5, and XVERSE: a Llama; folders of InternLM have q, k and v in one matrix."""

from __future__ import annotations

from stretto.models.common import Keys, attention, attention_biases, plain_decoder
from stretto.models.spec import ModelSpec


def read(keys: Keys) -> ModelSpec:
    """The spec of an internlm2 or an xverse file."""
    return plain_decoder(keys, attention(keys, "adjacent", **attention_biases(keys)))
