"""Kimi Linear: Kimi's delta attention, and in a few layers latent attention without positions; experts."""

from __future__ import annotations

from dataclasses import replace

from stretto.models import common
from stretto.models.common import MAX_HEAD_SIZE, Keys
from stretto.models.deepseek2 import latent
from stretto.models.hybrids import kernel
from stretto.models.spec import KimiDelta, ModelSpec, Norm


def read(keys: Keys) -> ModelSpec:
    """The spec of a kimi-linear file."""
    common.refuse_caps(keys)
    size = keys.size("kda.head_dim", most=MAX_HEAD_SIZE)
    delta = KimiDelta(
        n_head=keys.size("attention.head_count", most=common.MAX_HEADS),
        head_size=size,
        rank=size,
        kernel=kernel(keys, "ssm.conv_kernel"),
        norm=Norm("ssm_norm", keys.eps),
    )
    attends = replace(latent(keys), rope=None)
    heads = keys.sizes("attention.head_count_kv", least=0)
    normalize = keys.flag("expert_weights_norm", True)
    gating = common.gating(keys, "sigmoid")
    choice = common.routing(keys, gating, normalize=normalize, correction=common.corrected(keys))
    ffn = common.mixture(keys, choice, shared=common.shared_experts(keys))
    return common.routed_decoder(keys, [attends if n else delta for n in heads], ffn)
