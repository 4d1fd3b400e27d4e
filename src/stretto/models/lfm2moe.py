"""LFM2-MoE: dense layers first, then experts, whose sigmoid has a bias for the choice."""

from __future__ import annotations

from stretto.models.common import Keys, dense, dense_first, gating, mixture, routing
from stretto.models.lfm2 import convolutions
from stretto.models.spec import ModelSpec


def read(keys: Keys) -> ModelSpec:
    """The spec of an lfm2moe file."""
    first = dense_first(keys)
    experts = mixture(keys, routing(keys, gating(keys, "sigmoid"), correction=True))
    return convolutions(keys, [dense(keys)] * first + [experts] * (keys.n_layer - first))
