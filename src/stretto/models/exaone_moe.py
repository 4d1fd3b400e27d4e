"""K-EXAONE: windows in three of four layers, no rope in the others, experts as dots.llm1 has them."""

from __future__ import annotations

from dataclasses import replace

from stretto.models import common
from stretto.models.common import Keys
from stretto.models.dots1 import experts
from stretto.models.spec import ModelSpec

PERIOD = 4  # every fourth layer is global, unless the file says otherwise


def read(keys: Keys) -> ModelSpec:
    """The spec of an exaone-moe file."""
    common.refuse_caps(keys)
    rotated = common.attention(keys, "halves", **common.qk_norms(keys.eps))
    mixers = [rotated] * keys.n_layer
    if window := keys.count("attention.sliding_window"):
        near, wide = replace(rotated, window=window), common.remove_rope(rotated)
        mixers = common.alternate(keys, near, wide, PERIOD)
    return common.routed_decoder(keys, mixers, experts(keys))
