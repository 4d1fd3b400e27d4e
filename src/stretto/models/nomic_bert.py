"""Nomic's BERT: rotary positions and a gated feed-forward, or one with experts in every other layer."""

from __future__ import annotations

from stretto.models.common import Keys, dense, refuse_experts
from stretto.models.encoders import encoder, post_norm_layer, two_way, uniform_encoder
from stretto.models.feed_forward import FeedForward
from stretto.models.spec import Experts, ModelSpec, Routing


def read(keys: Keys) -> ModelSpec:
    """The spec of a nomic-bert file."""
    refuse_experts(keys)
    return uniform_encoder(keys, two_way(keys, "halves"), dense(keys))


def read_moe(keys: Keys) -> ModelSpec:
    """The spec of a nomic-bert-moe file."""
    mixer, every = two_way(keys, "halves"), keys.size("moe_every_n_layers")
    plain = dense(keys, activation="gelu_erf", gated=False, bias=keys.has("blk.0.ffn_up.bias"))
    choice = Routing(keys.size("expert_used_count"), normalize=False)
    experts = Experts(keys.size("expert_count"), plain.n_ff, choice, activation="gelu_erf", gated=False)
    ffns: list[FeedForward] = [experts if i % every == 1 else plain for i in range(keys.n_layer)]
    return encoder(keys, (post_norm_layer(keys, mixer, ffn) for ffn in ffns))
