"""GLM 4.5 and 4.6: dense first layers, routing by sigmoid with a bias for the choice, half a head rotated."""

from __future__ import annotations

from stretto.models.common import (
    Keys,
    attention,
    decoder,
    dense_first,
    gating,
    head_size,
    mixture,
    qk_norms,
    refuse_caps,
    routing,
    shared_experts,
)
from stretto.models.rope import read_rope
from stretto.models.spec import Dense, Layer, ModelSpec, Norm
from stretto.weights.gguf import GGUF


def read(file: GGUF) -> ModelSpec:
    """The spec of a glm4moe file."""
    keys = Keys(file, "glm4moe")
    refuse_caps(keys)
    rope = read_rope(file, "glm4moe", head_size(file, "glm4moe"), "halves")
    norms = qk_norms(keys.eps) if keys.has("blk.0.attn_q_norm.weight") else {}
    mixer = attention(keys, rope, bias=keys.has("blk.0.attn_q.bias"), **norms)
    normalize = keys.flag("expert_weights_norm", False)
    choice = routing(keys, gating(keys, "sigmoid"), normalize=normalize, correction=True)
    ffn, dense = mixture(keys, choice, shared=shared_experts(keys)), dense_first(keys)
    first = Dense(keys.size("feed_forward_length"))
    before = Norm("attn_norm", keys.eps), Norm("post_attention_norm", keys.eps)
    return decoder(keys, (Layer(mixer, first if i < dense else ffn, *before) for i in range(keys.n_layer)))
