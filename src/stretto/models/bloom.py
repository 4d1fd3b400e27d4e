"""BLOOM: scores that fall with the distance (ALiBi), a norm of embeddings, biases everywhere."""

from __future__ import annotations

from stretto.models import common
from stretto.models.common import Keys
from stretto.models.spec import ModelSpec


def read(keys: Keys) -> ModelSpec:
    """The spec of a bloom file."""
    common.refuse_experts(keys)
    alibi = common.slopes(keys.size("attention.head_count", most=common.MAX_HEADS))
    mixer = common.attention(keys, None, alibi=alibi, **common.fused_biases(keys))
    norm = common.layer_norm(keys, "token_embd_norm")
    return common.layer_norm_decoder(keys, mixer, common.ungated(keys, "gelu"), embedding_norm=norm)
