"""LFM2-MoE: dense layers first, then experts, whose sigmoid has a bias for the choice."""

from __future__ import annotations

from stretto.models.common import Keys, dense_first, gating, mixture, routing
from stretto.models.lfm2 import convolutions
from stretto.models.spec import Dense, ModelSpec
from stretto.weights.gguf import GGUF


def read(file: GGUF) -> ModelSpec:
    """The spec of an lfm2moe file."""
    keys = Keys(file, "lfm2moe")
    first, dense = dense_first(keys), Dense(keys.size("feed_forward_length"))
    experts = mixture(keys, routing(keys, gating(keys, "sigmoid"), correction=True))
    return convolutions(keys, [dense] * first + [experts] * (keys.n_layer - first))
