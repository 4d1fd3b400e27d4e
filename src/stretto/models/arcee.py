"""Arcee (AFM): a Llama whose feed-forward has no gate, but relu²."""

from __future__ import annotations

from stretto.models import common
from stretto.models.common import Keys
from stretto.models.spec import ModelSpec


def read(keys: Keys) -> ModelSpec:
    """The spec of an arcee file."""
    common.refuse_experts(keys)
    mixer = common.attention(keys, "adjacent", **common.attention_biases(keys))
    return common.uniform_decoder(keys, mixer, common.ungated(keys, "relu2"))
