"""StarCoder 2 and CodeShell: layer norms, biases everywhere, a feed-forward without a gate."""

from __future__ import annotations

from stretto.models import common
from stretto.models.common import Keys
from stretto.models.spec import Layer, ModelSpec, Norm


def read(keys: Keys) -> ModelSpec:
    """The spec of a starcoder2 or a codeshell file."""
    common.refuse_experts(keys)
    mixer = common.attention(keys, "halves", **common.fused_biases(keys))
    ffn = common.dense(keys, activation="gelu", gated=False, bias=keys.has("blk.0.ffn_up.bias"))

    def norm(name: str) -> Norm:
        return Norm(name, keys.layer_eps, "layer", bias=True)

    layer = Layer(mixer, ffn, norm("attn_norm"), norm("ffn_norm"))
    spec = common.decoder(keys, (layer,) * keys.n_layer, output_norm=norm("output_norm"))
    return common.add_windows(keys, spec)
