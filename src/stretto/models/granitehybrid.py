"""Granite 4: Mamba-2 layers and a few with attention, without rope; with experts or without."""

from __future__ import annotations

from dataclasses import replace

from stretto.models.common import Keys, attention, decoder, head_size, mixture, shared_expert
from stretto.models.hybrids import mamba2
from stretto.models.rope import read_rope
from stretto.models.spec import Dense, Experts, ModelSpec, plain_layer
from stretto.weights.gguf import GGUF


def read(file: GGUF) -> ModelSpec:
    """The spec of a granitehybrid file."""
    keys = Keys(file, "granitehybrid")
    size = head_size(file, "granitehybrid")
    # Here the key says whether there is a rope at all.
    has_rope = keys.flag("rope.scaling.finetuned", True)
    rope = read_rope(file, "granitehybrid", size, "adjacent") if has_rope else None
    scale = keys.number("attention.scale", 0.0, 0.0, 1e6) or size**-0.5
    mamba, ffn, layers = mamba2(keys, norm=True, conv_bias=True), _feed_forward(keys), []
    for i, n_kv_head in enumerate(keys.sizes("attention.head_count_kv", least=0)):
        if n_kv_head:
            biases = {
                "bias": keys.has(f"blk.{i}.attn_q.bias"),
                "output_bias": keys.has(f"blk.{i}.attn_output.bias"),
            }
            mixer = attention(keys, rope, n_kv_head=n_kv_head, scale=scale, **biases)
            layers.append(plain_layer(mixer, ffn, keys.eps))
        else:
            layers.append(plain_layer(mamba, ffn, keys.eps))
    residual = keys.number("residual_scale", 1.0, 1e-6, 1e6)
    return decoder(
        keys,
        (replace(layer, residual_scale=residual) for layer in layers),
        embedding_scale=keys.number("embedding_scale", 1.0, 1e-6, 1e6),
        logit_scale=1 / keys.number("logit_scale", 1.0, 1e-6, 1e6),
    )


def _feed_forward(keys: Keys) -> Dense | Experts:
    """A dense one, or experts with one that all tokens have."""
    n_ff = keys.size("feed_forward_length")
    if not keys.count("expert_count"):
        return Dense(n_ff)
    return mixture(keys, n_ff=n_ff, shared=shared_expert(keys.count("expert_shared_feed_forward_length")))
