"""Granite 3: a Llama with multipliers of embeddings, residuals, scores and logits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from stretto.models import common
from stretto.models.common import Keys, Pairs
from stretto.models.spec import Attention, Layer, ModelSpec, plain_layer


def read(keys: Keys) -> ModelSpec:
    """The spec of a granite file."""
    common.refuse_experts(keys)
    mixer = scaled_attention(keys, **common.attention_biases(keys))
    layer = plain_layer(mixer, common.dense(keys, bias=keys.has("blk.0.ffn_up.bias")), keys.eps)
    return scaled_decoder(keys, (layer,) * keys.n_layer)


def scaled_attention(keys: Keys, **pieces: Any) -> Attention:
    """Granite's attention, with a scale of its own; `pieces` are the fields that differ."""
    # The key is named for something else, but in these files it says whether there is a rope at all.
    pairs: Pairs | None = "adjacent" if keys.flag("rope.scaling.finetuned", True) else None
    scale = keys.number("attention.scale", 0.0, 0.0, 1e6) or common.head_size(keys) ** -0.5
    return common.attention(keys, pairs, scale=scale, **pieces)


def scaled_decoder(keys: Keys, layers: Iterable[Layer]) -> ModelSpec:
    """A model of these layers with Granite's multipliers."""
    residual = keys.number("residual_scale", 1.0, 1e-6, 1e6)
    return common.decoder(
        keys,
        (replace(layer, residual_scale=residual) for layer in layers),
        embedding_scale=keys.number("embedding_scale", 1.0, 1e-6, 1e6),
        logit_scale=1 / keys.number("logit_scale", 1.0, 1e-6, 1e6),
    )
