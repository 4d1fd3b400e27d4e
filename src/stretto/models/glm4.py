"""GLM-4: adjacent pairs in a part of each head, norms on both sides, gate and up in one matrix."""

from __future__ import annotations

from stretto.models.common import Keys, Pairs, attention, decoder, dense, refuse_experts
from stretto.models.spec import ModelSpec, sandwich


def read(keys: Keys) -> ModelSpec:
    """The spec of a glm4 file."""
    refuse_experts(keys)
    # The rows of a model that sees images are stored for the other pairing.
    pairs: Pairs = "halves" if "rope.dimension_sections" in keys else "adjacent"
    fused = keys.has("blk.0.attn_qkv.weight")
    bias = keys.has("blk.0.attn_qkv.bias" if fused else "blk.0.attn_q.bias")
    layer = sandwich(attention(keys, pairs, bias=bias, fused=fused), dense(keys, fused=True), keys.eps)
    return decoder(keys, (layer,) * keys.n_layer)
