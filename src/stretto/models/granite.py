"""Granite 3: a Llama with multipliers of embeddings, residuals, scores and logits."""

from __future__ import annotations

from stretto.models.common import Keys, attention, attention_biases, decoder, head_size, refuse_experts
from stretto.models.rope import read_rope
from stretto.models.spec import Dense, Layer, ModelSpec, Norm
from stretto.weights.gguf import GGUF


def read(file: GGUF) -> ModelSpec:
    """The spec of a granite file."""
    keys = Keys(file, "granite")
    refuse_experts(keys)
    size, eps = head_size(file, "granite"), keys.eps
    # The key is named for something else, but in these files it says whether there is a rope at all.
    has_rope = keys.flag("rope.scaling.finetuned", True)
    mixer = attention(
        keys,
        read_rope(file, "granite", size, "adjacent") if has_rope else None,
        scale=keys.number("attention.scale", 0.0) or size**-0.5,
        **attention_biases(keys),
    )
    layer = Layer(
        mixer,
        Dense(keys.size("feed_forward_length"), bias=keys.has("blk.0.ffn_up.bias")),
        Norm("attn_norm", eps),
        Norm("ffn_norm", eps),
        residual_scale=keys.number("residual_scale", 1.0),
    )
    return decoder(
        keys,
        (layer,) * keys.n_layer,
        embedding_scale=keys.number("embedding_scale", 1.0),
        logit_scale=1.0 / keys.number("logit_scale", 1.0, least=1e-6),
    )
