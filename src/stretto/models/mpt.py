"""MPT: scores that fall with the distance (ALiBi), few biases, limits of q, k and v in some."""

from __future__ import annotations

from stretto.models import common
from stretto.models.common import Keys
from stretto.models.spec import ModelSpec


def read(keys: Keys) -> ModelSpec:
    """The spec of an mpt file."""
    common.refuse_experts(keys)
    heads = keys.size("attention.head_count", most=common.MAX_HEADS)
    most = keys.number("attention.max_alibi_bias", 0.0, 0.0, 64.0)
    clip = keys.number("attention.clamp_kqv", 0.0, 0.0)
    alibi = common.slopes(heads, most) if most else ()
    mixer = common.attention(keys, None, alibi=alibi, clip=clip, **common.fused_biases(keys))
    return common.layer_norm_decoder(keys, mixer, common.ungated(keys, "gelu_erf"))
