"""Falcon-H1: attention and Mamba-2 side by side in each layer.

Its multipliers are not here: files have them in their weights.
"""

from __future__ import annotations

from stretto.models.common import Keys, attention, decoder, head_size, refuse_experts
from stretto.models.hybrids import mamba2
from stretto.models.rope import read_rope
from stretto.models.spec import Beside, Dense, Layer, ModelSpec, Norm
from stretto.weights.gguf import GGUF


def read(file: GGUF) -> ModelSpec:
    """The spec of a falcon-h1 file."""
    keys = Keys(file, "falcon-h1")
    refuse_experts(keys)
    rope = read_rope(file, "falcon-h1", head_size(file, "falcon-h1"), "halves")
    mamba = mamba2(keys, norm=keys.has("blk.0.ssm_norm.weight"), conv_bias=keys.has("blk.0.ssm_conv1d.bias"))
    mixer = Beside(attention(keys, rope, bias=keys.has("blk.0.attn_q.bias")), mamba)
    ffn = Dense(keys.size("feed_forward_length"))
    norms = (
        Norm("attn_norm", keys.eps),
        Norm("ffn_norm", keys.eps, bare=not keys.has("blk.0.ffn_norm.weight")),
    )
    return decoder(keys, (Layer(mixer, ffn, *norms),) * keys.n_layer)
