"""Qwen 3 MoE: Qwen 3 with experts."""

from __future__ import annotations

from stretto.models.common import Keys, attention, decoder, head_size, mixture, qk_norms, refuse_caps, routing
from stretto.models.rope import read_rope
from stretto.models.spec import ModelSpec, plain_layer
from stretto.weights.gguf import GGUF


def read(file: GGUF) -> ModelSpec:
    """The spec of a qwen3moe file."""
    keys = Keys(file, "qwen3moe")
    refuse_caps(keys)
    rope = read_rope(file, "qwen3moe", head_size(file, "qwen3moe"), "halves")
    ffn = mixture(keys, routing(keys, normalize=keys.flag("expert_weights_norm", True)))
    layer = plain_layer(attention(keys, rope, **qk_norms(keys.eps)), ffn, keys.eps)
    return decoder(keys, (layer,) * keys.n_layer)
