"""StarCoder 2: layer norms, biases everywhere, a feed-forward without a gate."""

from __future__ import annotations

from stretto.models.common import (
    Keys,
    attention,
    attention_biases,
    decoder,
    head_size,
    refuse_experts,
    with_windows,
)
from stretto.models.rope import read_rope
from stretto.models.spec import Dense, Layer, ModelSpec, Norm
from stretto.weights.gguf import GGUF


def read(file: GGUF) -> ModelSpec:
    """The spec of a starcoder2 file."""
    keys = Keys(file, "starcoder2")
    refuse_experts(keys)
    mixer = attention(
        keys,
        read_rope(file, "starcoder2", head_size(file, "starcoder2"), "halves"),
        **attention_biases(keys),
    )
    ffn = Dense(keys.size("feed_forward_length"), "gelu", gated=False, bias=keys.has("blk.0.ffn_up.bias"))

    def norm(name: str) -> Norm:
        return Norm(name, keys.layer_eps, "layer", bias=True)

    layer = Layer(mixer, ffn, norm("attn_norm"), norm("ffn_norm"))
    return with_windows(keys, decoder(keys, (layer,) * keys.n_layer, output_norm=norm("output_norm")))
