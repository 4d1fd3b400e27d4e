"""Mamba-2 alone: no attention and no feed-forward, so the memory of a sequence does not grow with it."""

from __future__ import annotations

from stretto.models.common import Keys, decoder
from stretto.models.hybrids import mamba2
from stretto.models.spec import Layer, ModelSpec, Norm


def read(keys: Keys) -> ModelSpec:
    """The spec of a mamba2 file."""
    mixer = mamba2(keys, norm=True, conv_bias=keys.has("blk.0.ssm_conv1d.bias"))
    layer = Layer(mixer, None, Norm("attn_norm", keys.eps), None)
    return decoder(keys, (layer,) * keys.n_layer)
