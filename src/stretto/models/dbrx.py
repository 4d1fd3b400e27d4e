"""DBRX: layer norms without biases, q, k and v within limits, experts in every layer."""

from __future__ import annotations

from stretto.models import common
from stretto.models.common import Keys
from stretto.models.spec import Layer, ModelSpec


def read(keys: Keys) -> ModelSpec:
    """The spec of a dbrx file."""
    common.refuse_caps(keys)
    clip = keys.number("attention.clamp_kqv", 0.0, 0.0)
    mixer = common.attention(keys, "halves", fused=True, clip=clip)
    ffn = common.mixture(keys, n_ff=keys.size("feed_forward_length"))
    before, between, last = (
        common.layer_norm(keys, name) for name in ("attn_norm", "attn_output_norm", "output_norm")
    )
    return common.decoder(keys, (Layer(mixer, ffn, before, between),) * keys.n_layer, output_norm=last)
