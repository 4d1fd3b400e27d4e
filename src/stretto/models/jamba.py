"""Jamba: Mamba's first version, attention without a rope in a few layers, experts in some."""

from __future__ import annotations

from stretto.models import common
from stretto.models.common import Keys
from stretto.models.hybrids import mamba
from stretto.models.spec import ModelSpec, Norm


def read(keys: Keys) -> ModelSpec:
    """The spec of a jamba file."""
    common.refuse_caps(keys)
    recurrent = mamba(keys, lambda name: Norm(name, keys.eps))
    mixers = [
        common.attention(keys, None, n_kv_head=heads) if heads else recurrent
        for heads in keys.sizes("attention.head_count_kv", least=0)
    ]
    choice = common.routing(keys, normalize=False)
    return common.routed_decoder(
        keys, mixers, common.mixture(keys, choice, n_ff=keys.size("feed_forward_length"))
    )
