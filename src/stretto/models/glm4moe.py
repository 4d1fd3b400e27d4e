"""GLM 4.5 and 4.6: dense first layers, routing by sigmoid with a bias for the choice, half a head rotated."""

from __future__ import annotations

from stretto.models import common
from stretto.models.common import Keys
from stretto.models.spec import Layer, ModelSpec, Norm


def read(keys: Keys) -> ModelSpec:
    """The spec of a glm4moe file."""
    common.refuse_caps(keys)
    norms = common.qk_norms(keys.eps) if keys.has("blk.0.attn_q_norm.weight") else {}
    mixer = common.attention(keys, "halves", bias=keys.has("blk.0.attn_q.bias"), **norms)
    normalize = keys.flag("expert_weights_norm", False)
    choice = common.routing(keys, common.gating(keys, "sigmoid"), normalize=normalize, correction=True)
    ffn, dense = common.mixture(keys, choice, shared=common.shared_experts(keys)), common.dense(keys)
    n_dense = common.dense_first(keys)
    before = Norm("attn_norm", keys.eps), Norm("post_attention_norm", keys.eps)
    layers = (Layer(mixer, dense if i < n_dense else ffn, *before) for i in range(keys.n_layer))
    return common.decoder(keys, layers)
