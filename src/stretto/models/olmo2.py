"""OLMo 2 and 3: norms after attention and feed-forward only, q and k normalised as a whole.

OLMo 3 has windows in three of four layers; the scaling of its rope is for the other layers only.
"""

from __future__ import annotations

from dataclasses import replace

from stretto.models.common import (
    Keys,
    alternate,
    attention,
    decoder,
    dense,
    read_plain_rope,
    refuse_experts,
    whole_norms,
)
from stretto.models.spec import Layer, ModelSpec, Norm

PERIOD = 4  # every fourth layer of OLMo 3 is global, unless the file says otherwise


def read(keys: Keys) -> ModelSpec:
    """The spec of an olmo2 file."""
    refuse_experts(keys)
    ffn, eps = dense(keys), keys.eps
    wide = attention(keys, "halves", **whole_norms(eps))
    mixers = [wide] * keys.n_layer
    if window := keys.count("attention.sliding_window"):
        near = replace(wide, rope=read_plain_rope(keys, "halves"), window=window)
        mixers = alternate(keys, near, wide, PERIOD)
    after = Norm("post_attention_norm", eps), Norm("post_ffw_norm", eps)
    return decoder(keys, (Layer(mixer, ffn, None, None, *after) for mixer in mixers))
