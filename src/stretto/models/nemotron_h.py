"""Nemotron-H: each layer is Mamba-2, attention without rope, or a feed-forward with relu²."""

from __future__ import annotations

from stretto.models.common import LAYER_EPSILON, Keys, attention, decoder, mixture, routing
from stretto.models.hybrids import mamba2
from stretto.models.spec import Dense, Experts, Layer, ModelSpec, Norm


def read(keys: Keys) -> ModelSpec:
    """The spec of a nemotron_h file."""
    keys.refuse("expert_count", "a mixture of experts")
    widths = keys.sizes("feed_forward_length", least=0)
    biases = (keys.has(f"blk.{i}.ffn_up.bias") for i in range(keys.n_layer))
    ffns = [
        Dense(n, "relu2", gated=False, bias=bias) if n else None
        for n, bias in zip(widths, biases, strict=True)
    ]
    return _one_part_each(keys, ffns)


def read_moe(keys: Keys) -> ModelSpec:
    """The spec of a nemotron_h_moe file (Nemotron 3): experts in place of the feed-forwards."""
    keys.refuse("moe_latent_size", "a compression before the experts")
    choice = routing(keys, "sigmoid", normalize=keys.flag("expert_weights_norm", False), correction=True)
    width = keys.size("expert_shared_feed_forward_length")
    shared = Dense(width, "relu2", gated=False, suffix="_shexp")
    experts = mixture(keys, choice, activation="relu2", gated=False, shared=shared)
    return _one_part_each(keys, [experts if n else None for n in keys.sizes("feed_forward_length", least=0)])


def _one_part_each(keys: Keys, ffns: list[Dense | None] | list[Experts | None]) -> ModelSpec:
    """A model whose layers are a feed-forward, attention if they have K/V heads, or else Mamba-2.

    llama.cpp's converter gives its RMS norms the epsilon of layer norms alone where a configuration has only
    `layer_norm_epsilon`, as those of transformers.
    """
    if keys.rms_epsilon not in keys:
        keys.rms_epsilon = LAYER_EPSILON
    norm, mamba, layers = Norm("attn_norm", keys.eps), mamba2(keys, norm=True, conv_bias=True), []
    for ffn, n_kv_head in zip(ffns, keys.sizes("attention.head_count_kv", least=0), strict=True):
        if ffn is not None:
            layers.append(Layer(None, ffn, None, norm))
        elif n_kv_head:
            layers.append(Layer(attention(keys, None, n_kv_head=n_kv_head), None, norm, None))
        else:
            layers.append(Layer(mamba, None, norm, None))
    return decoder(keys, layers)
