"""Hunyuan (dense): q and k are normalised after the rope, whose stretched base is in the file."""

from __future__ import annotations

from stretto.models.common import Keys, attention, plain_decoder, qk_norms
from stretto.models.spec import ModelSpec


def read(keys: Keys) -> ModelSpec:
    """The spec of a hunyuan-dense file."""
    return plain_decoder(keys, attention(keys, "halves", norm_after_rope=True, **qk_norms(keys.eps)))
