"""EXAONE 4: norms after attention and feed-forward only; with windows, the global layers have no rope."""

from __future__ import annotations

from dataclasses import replace

from stretto.models.common import (
    Keys,
    attention,
    decoder,
    head_size,
    qk_norms,
    refuse_experts,
    windowed,
    without_rope,
)
from stretto.models.rope import read_rope
from stretto.models.spec import Dense, Layer, ModelSpec, Norm
from stretto.weights.gguf import GGUF

PERIOD = 4  # every fourth layer is global, unless the file says otherwise


def read(file: GGUF) -> ModelSpec:
    """The spec of an exaone4 file."""
    keys = Keys(file, "exaone4")
    refuse_experts(keys)
    ffn, eps = Dense(keys.size("feed_forward_length")), keys.eps
    rope = read_rope(file, "exaone4", head_size(file, "exaone4"), "halves")
    rotated = attention(keys, rope, **qk_norms(eps))
    mixers = [rotated] * keys.n_layer
    if window := keys.count("attention.sliding_window"):
        near, wide = replace(rotated, window=window), without_rope(rotated)
        mixers = [near if narrow else wide for narrow in windowed(keys, PERIOD)]
    after = Norm("post_attention_norm", eps), Norm("post_ffw_norm", eps)
    return decoder(keys, (Layer(mixer, ffn, None, None, *after) for mixer in mixers))
