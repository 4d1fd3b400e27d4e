"""Nomic's BERT: rotary positions and a gated feed-forward, or one with experts in every other layer."""

from __future__ import annotations

from stretto.models.common import Keys, head_size, refuse_experts
from stretto.models.encoders import encoder, post_norm_layer, two_way
from stretto.models.feed_forward import FeedForward
from stretto.models.rope import read_rope
from stretto.models.spec import Dense, Experts, ModelSpec, Rope, Routing
from stretto.weights.gguf import GGUF


def read(file: GGUF) -> ModelSpec:
    """The spec of a nomic-bert file."""
    keys = Keys(file, "nomic-bert")
    refuse_experts(keys)
    layer = post_norm_layer(keys, two_way(keys, _rope(keys)), Dense(keys.size("feed_forward_length")))
    return encoder(keys, (layer,) * keys.n_layer)


def read_moe(file: GGUF) -> ModelSpec:
    """The spec of a nomic-bert-moe file."""
    keys = Keys(file, "nomic-bert-moe")
    mixer, n_ff = two_way(keys, _rope(keys)), keys.size("feed_forward_length")
    every = keys.size("moe_every_n_layers")
    dense = Dense(n_ff, "gelu_erf", gated=False, bias=keys.has("blk.0.ffn_up.bias"))
    experts = Experts(
        keys.size("expert_count"),
        n_ff,
        Routing(keys.size("expert_used_count"), normalize=False),
        activation="gelu_erf",
        gated=False,
    )
    ffns: list[FeedForward] = [experts if i % every == 1 else dense for i in range(keys.n_layer)]
    return encoder(keys, (post_norm_layer(keys, mixer, ffn) for ffn in ffns))


def _rope(keys: Keys) -> Rope:
    return read_rope(keys.file, keys.arch, head_size(keys.file, keys.arch), "halves")
