"""Mellum 2: Qwen 3 MoE with windows in some layers, whose rope has a base of its own and no scaling."""

from __future__ import annotations

from dataclasses import replace

from stretto.models import common
from stretto.models.common import Keys
from stretto.models.spec import ModelSpec

PERIOD = 4  # every fourth layer is global, unless the file says otherwise


def read(keys: Keys) -> ModelSpec:
    """The spec of a mellum file."""
    common.refuse_caps(keys)
    wide = common.attention(keys, "halves", **common.qk_norms(keys.eps))
    mixers = [wide] * keys.n_layer
    if window := keys.count("attention.sliding_window"):
        own_base = "rope.freq_base_swa" in keys
        rope = common.read_local_rope(keys) if own_base else common.read_plain_rope(keys, "halves")
        mixers = common.alternate(keys, replace(wide, rope=rope, window=window), wide, PERIOD)
    return common.routed_decoder(keys, mixers, common.mixture(keys))
