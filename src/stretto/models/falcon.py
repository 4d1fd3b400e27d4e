"""Falcon: branches side by side, of one layer norm (7B) or of one each (40B), one K/V head or a few."""

from __future__ import annotations

from stretto.models import common
from stretto.models.common import Keys
from stretto.models.spec import Layer, ModelSpec


def read(keys: Keys) -> ModelSpec:
    """The spec of a falcon file."""
    common.refuse_experts(keys)
    mixer = common.attention(keys, "halves", **common.fused_biases(keys))
    ffn, shared = common.ungated(keys, "gelu_erf"), common.layer_norm(keys, "attn_norm")
    layer = Layer(mixer, ffn, shared, None, parallel=True)
    if keys.has("blk.0.attn_norm_2.weight"):  # that of the attention: the other one is the feed-forward's
        layer = Layer(mixer, ffn, common.layer_norm(keys, "attn_norm_2"), shared, parallel=True)
    output_norm = common.layer_norm(keys, "output_norm")
    return common.decoder(keys, (layer,) * keys.n_layer, output_norm=output_norm)
