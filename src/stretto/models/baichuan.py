"""Baichuan 1 and 2: a Llama; those of 40 layers (13B) have scores that fall with the distance for a rope."""

from __future__ import annotations

from dataclasses import replace

from stretto.models import common
from stretto.models.common import Keys
from stretto.models.spec import ModelSpec

LAYERS_WITHOUT_ROPE = 40  # no key of the file says it


def read(keys: Keys) -> ModelSpec:
    """The spec of a baichuan file."""
    mixer = common.attention(keys, "adjacent", **common.fused_biases(keys))
    if keys.n_layer == LAYERS_WITHOUT_ROPE:
        mixer = replace(mixer, rope=None, alibi=common.slopes(mixer.n_head))
    return common.plain_decoder(keys, mixer)
