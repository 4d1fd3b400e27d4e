"""Llama 4 (text): chunks with a rope in three of four layers, growing queries without one in the others."""

from __future__ import annotations

from dataclasses import replace

from stretto.models import common
from stretto.models.common import Keys
from stretto.models.spec import Attention, ModelSpec, Norm, Temperature

# What files of llama.cpp's converter do not say: these are the same in all published models.
PERIOD = 4  # every fourth layer is global
CHUNK, LENGTH, SLOPE = 8192, 8192, 0.1  # of attention, and of the growth of queries
UNNORMALISED = 128  # the number of experts of the model (Maverick) that does not normalise q and k


def read(keys: Keys) -> ModelSpec:
    """The spec of a llama4 file."""
    common.refuse_caps(keys)
    # An expert's weight is that of what it reads.
    choice = common.routing(keys, "sigmoid", normalize=False)
    n_ff = keys.size("expert_feed_forward_length")
    shared = common.shared_expert(n_ff)
    ffn = common.mixture(keys, choice, n_ff=n_ff, shared=shared, weighs_inputs=True)
    return common.routed_decoder(keys, attentions(keys), ffn)


def attentions(keys: Keys) -> list[Attention]:
    """The attention of each layer."""
    norms = {}
    if keys.flag("attention.qk_norm", keys.size("expert_count") != UNNORMALISED):
        norms = {f"{name}_norm": Norm(f"attn_{name}_norm", keys.eps, weight=False) for name in "qk"}
    biases = common.attention_biases(keys)
    near = common.attention(keys, "adjacent", norm_after_rope=True, **norms, **biases)
    chunk = keys.count("attention.sliding_window", CHUNK)
    if not chunk:  # and no layer without a rope
        return [near] * keys.n_layer
    slope = keys.number("attention.temperature_scale", SLOPE, 0.0, 1e6)
    length = keys.size("attention.temperature_length", LENGTH)
    temperature = Temperature(slope, length, 1.0) if slope else None
    wide = replace(common.remove_rope(near), q_norm=None, k_norm=None, temperature=temperature)
    return common.alternate(keys, replace(near, window=chunk, chunked=True), wide, PERIOD)
