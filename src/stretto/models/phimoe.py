"""Phi-3.5-MoE: layer norms, biases, and experts that are chosen one after the other (SparseMixer)."""

from __future__ import annotations

from stretto.models import common
from stretto.models.common import Keys
from stretto.models.spec import Layer, ModelSpec, Norm

JITTER = 0.01  # of the router; files of llama.cpp's converter do not say it
USED = 2  # experts of a token: SparseMixer is made for two


def read(keys: Keys) -> ModelSpec:
    """The spec of a phimoe file."""
    common.refuse_caps(keys)
    if keys.size("expert_used_count") != USED:
        raise keys.error("expert_used_count", f"the router of this architecture chooses {USED} experts")
    jitter = keys.number("expert_jitter", JITTER, 0.0, 1.0)
    choice = common.routing(keys, "one by one", jitter=jitter, normalize=False)
    ffn = common.mixture(keys, choice, n_ff=keys.size("feed_forward_length"))
    mixer = common.attention(keys, "halves", **common.attention_biases(keys))
    # Layer norms, though the key of their epsilon is that of RMS norms.
    before, between, last = (
        Norm(name, keys.eps, "layer", bias=True) for name in ("attn_norm", "ffn_norm", "output_norm")
    )
    layer = Layer(mixer, ffn, before, between)
    has_bias = keys.has("output.bias")
    spec = common.decoder(keys, (layer,) * keys.n_layer, output_norm=last, output_bias=has_bias)
    return common.add_windows(keys, spec)
