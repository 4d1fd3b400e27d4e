"""SmolLM3: a Llama whose every fourth layer has no rope."""

from __future__ import annotations

from stretto.models.common import Keys, attention, decoder, dense, refuse_experts, remove_rope
from stretto.models.spec import ModelSpec, plain_layer

PERIOD = 4  # files do not say it


def read(keys: Keys) -> ModelSpec:
    """The spec of a smollm3 file."""
    refuse_experts(keys)
    rotated, ffn, eps = attention(keys, "adjacent"), dense(keys), keys.eps
    mixers = (remove_rope(rotated) if i % PERIOD == PERIOD - 1 else rotated for i in range(keys.n_layer))
    return decoder(keys, (plain_layer(mixer, ffn, eps) for mixer in mixers))
