"""BERT, and RoBERTa and XLM-R, which llama.cpp's files call the same: learned positions, exact GELU."""

from __future__ import annotations

from stretto.models.common import Keys, refuse_experts
from stretto.models.encoders import encoder, learned_positions, post_norm_layer, two_way
from stretto.models.spec import Dense, ModelSpec
from stretto.weights.gguf import GGUF


def read(file: GGUF) -> ModelSpec:
    """The spec of a bert file."""
    keys = Keys(file, "bert")
    refuse_experts(keys)
    ffn = Dense(keys.size("feed_forward_length"), "gelu_erf", gated=False, bias=keys.has("blk.0.ffn_up.bias"))
    layer = post_norm_layer(keys, two_way(keys, None), ffn)
    return encoder(keys, (layer,) * keys.n_layer, **learned_positions(keys))
