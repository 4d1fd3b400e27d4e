"""EXAONE 4: norms after attention and feed-forward only; with windows, the global layers have no rope."""

from __future__ import annotations

from dataclasses import replace

from stretto.models import common
from stretto.models.common import Keys
from stretto.models.spec import Layer, ModelSpec, Norm

PERIOD = 4  # every fourth layer is global, unless the file says otherwise


def read(keys: Keys) -> ModelSpec:
    """The spec of an exaone4 file."""
    common.refuse_experts(keys)
    ffn, eps = common.dense(keys), keys.eps
    rotated = common.attention(keys, "halves", **common.qk_norms(eps))
    mixers = [rotated] * keys.n_layer
    if window := keys.count("attention.sliding_window"):
        near, wide = replace(rotated, window=window), common.remove_rope(rotated)
        mixers = common.alternate(keys, near, wide, PERIOD)
    after = Norm("post_attention_norm", eps), Norm("post_ffw_norm", eps)
    return common.decoder(keys, (Layer(mixer, ffn, None, None, *after) for mixer in mixers))
