"""Falcon-H1: attention and Mamba-2 side by side in each layer.

Its multipliers are not here: files have them in their weights.
"""

from __future__ import annotations

from stretto.models.common import Keys, attention, decoder, dense, refuse_experts
from stretto.models.hybrids import mamba2
from stretto.models.spec import Beside, Layer, ModelSpec, Norm


def read(keys: Keys) -> ModelSpec:
    """The spec of a falcon-h1 file."""
    refuse_experts(keys)
    mamba = mamba2(keys, norm=keys.has("blk.0.ssm_norm.weight"), conv_bias=keys.has("blk.0.ssm_conv1d.bias"))
    mixer = Beside(attention(keys, "halves", bias=keys.has("blk.0.attn_q.bias")), mamba)
    ffn_norm = Norm("ffn_norm", keys.eps, bare=not keys.has("blk.0.ffn_norm.weight"))
    layer = Layer(mixer, dense(keys), Norm("attn_norm", keys.eps), ffn_norm)
    return decoder(keys, (layer,) * keys.n_layer)
