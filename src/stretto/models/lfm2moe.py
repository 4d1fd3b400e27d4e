"""LFM2-MoE: dense layers first, then experts, whose sigmoid has a bias for the choice."""

from __future__ import annotations

from stretto.models.common import MAX_EXPERTS, MAX_LAYERS, Keys
from stretto.models.hybrids import routing
from stretto.models.lfm2 import convolutions
from stretto.models.spec import Dense, Experts, ModelSpec, Routing
from stretto.weights.gguf import GGUF


def read(file: GGUF) -> ModelSpec:
    """The spec of an lfm2moe file."""
    keys = Keys(file, "lfm2moe")
    keys.refuse("expert_gating_func", "another function of the router", harmless=2)  # sigmoid
    first = min(keys.count("leading_dense_block_count", most=MAX_LAYERS), keys.n_layer)
    experts = Experts(
        n_expert=keys.size("expert_count", most=MAX_EXPERTS),
        n_ff=keys.size("expert_feed_forward_length"),
        routing=routing(keys, Routing(keys.size("expert_used_count"), "sigmoid", correction=True)),
    )
    dense = Dense(keys.size("feed_forward_length"))
    return convolutions(keys, [dense] * first + [experts] * (keys.n_layer - first))
