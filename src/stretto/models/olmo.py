"""OLMo (1): layer norms without weights, and limits of q, k and v in some."""

from __future__ import annotations

from stretto.models.common import Keys, attention, attention_biases, decoder, dense, refuse_experts
from stretto.models.spec import Layer, ModelSpec, Norm


def read(keys: Keys) -> ModelSpec:
    """The spec of an olmo file."""
    refuse_experts(keys)
    norm = Norm("", keys.layer_eps, "layer", weight=False)
    mixer = attention(
        keys, "adjacent", clip=keys.number("attention.clamp_kqv", 0.0, 0.0), **attention_biases(keys)
    )
    return decoder(keys, (Layer(mixer, dense(keys), norm, norm),) * keys.n_layer, output_norm=norm)
