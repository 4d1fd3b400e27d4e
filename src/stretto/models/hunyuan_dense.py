"""Hunyuan (dense): q and k are normalised after the rope, whose stretched base is in the file."""

from __future__ import annotations

from stretto.models.common import Keys, attention, head_size, plain_decoder, qk_norms
from stretto.models.rope import read_rope
from stretto.models.spec import ModelSpec
from stretto.weights.gguf import GGUF


def read(file: GGUF) -> ModelSpec:
    """The spec of a hunyuan-dense file."""
    keys = Keys(file, "hunyuan-dense")
    rope = read_rope(file, "hunyuan-dense", head_size(file, "hunyuan-dense"), "halves")
    return plain_decoder(keys, attention(keys, rope, norm_after_rope=True, **qk_norms(keys.eps)))
