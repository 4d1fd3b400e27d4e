"""ERNIE 4.5: a Llama, whose small models may have biases."""

from __future__ import annotations

from stretto.models.common import Keys, attention, decoder, head_size, refuse_experts
from stretto.models.rope import read_rope
from stretto.models.spec import Dense, ModelSpec, plain_layer
from stretto.weights.gguf import GGUF


def read(file: GGUF) -> ModelSpec:
    """The spec of an ernie4_5 file."""
    keys = Keys(file, "ernie4_5")
    refuse_experts(keys)
    mixer = attention(
        keys,
        read_rope(file, "ernie4_5", head_size(file, "ernie4_5"), "adjacent"),
        bias=keys.has("blk.0.attn_q.bias"),
        output_bias=keys.has("blk.0.attn_output.bias"),
    )
    ffn = Dense(keys.size("feed_forward_length"), bias=keys.has("blk.0.ffn_up.bias"))
    return decoder(keys, (plain_layer(mixer, ffn, keys.eps),) * keys.n_layer)
