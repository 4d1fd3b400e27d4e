"""Nomic's BERT: rotary positions and a gated feed-forward, or one with experts in every other layer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from stretto.models.common import ORIGINAL, SCALING, Keys, dense, read_plain_rope, read_rope, refuse_experts
from stretto.models.encoders import encoder, post_norm_layer, two_way, uniform_encoder
from stretto.models.feed_forward import FeedForward
from stretto.models.parts import Stretch
from stretto.models.spec import Experts, ModelSpec, Rope, Routing

# What nomic-embed-text v1 and v1.5 and their relatives were trained for, and made for. Converters write the
# first as the context and nothing of the scaling, which llama.cpp does not have.
TRAINED, LONGEST, FACTOR = 2048, 8192, 2.0


def read(keys: Keys) -> ModelSpec:
    """The spec of a nomic-bert file; beyond the trained length its rope stretches with the text."""
    refuse_experts(keys)
    kind, context = keys.file.metadata.text(keys.key(f"{SCALING}.type"), ""), keys.size("context_length")
    pieces: dict[str, Any] = {}
    if kind == "dynamic":
        length, factor = keys.size(ORIGINAL, context), keys.number(f"{SCALING}.factor", FACTOR, 1.0, 1e6)
        rope = _stretching(keys, read_plain_rope(keys, "halves"), Stretch(length, factor))
    elif not kind and context == TRAINED:
        rope = _stretching(keys, read_rope(keys, "halves"), Stretch(TRAINED, FACTOR))
        pieces["context_length"] = LONGEST
    else:
        rope = read_rope(keys, "halves")
    return uniform_encoder(keys, two_way(keys, rope), dense(keys), **pieces)


def _stretching(keys: Keys, rope: Rope, stretch: Stretch) -> Rope:
    if len(rope.frequencies) < 2:
        raise keys.error("rope.dimension_count", "a rope of one pair cannot stretch")
    return replace(rope, stretch=stretch)


def read_moe(keys: Keys) -> ModelSpec:
    """The spec of a nomic-bert-moe file."""
    mixer, every = two_way(keys, "halves"), keys.size("moe_every_n_layers")
    plain = dense(keys, activation="gelu_erf", gated=False, bias=keys.has("blk.0.ffn_up.bias"))
    choice = Routing(keys.size("expert_used_count"), normalize=False)
    experts = Experts(keys.size("expert_count"), plain.n_ff, choice, activation="gelu_erf", gated=False)
    ffns: list[FeedForward] = [experts if i % every == 1 else plain for i in range(keys.n_layer)]
    return encoder(keys, (post_norm_layer(keys, mixer, ffn) for ffn in ffns))
