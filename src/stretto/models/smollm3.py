"""SmolLM3: a Llama whose every fourth layer has no rope."""

from __future__ import annotations

from stretto.models.common import Keys, attention, decoder, head_size, refuse_experts, without_rope
from stretto.models.rope import read_rope
from stretto.models.spec import Dense, ModelSpec, plain_layer
from stretto.weights.gguf import GGUF

PERIOD = 4  # files do not say it


def read(file: GGUF) -> ModelSpec:
    """The spec of a smollm3 file."""
    keys = Keys(file, "smollm3")
    refuse_experts(keys)
    rotated = attention(keys, read_rope(file, "smollm3", head_size(file, "smollm3"), "adjacent"))
    ffn, eps = Dense(keys.size("feed_forward_length")), keys.eps
    mixers = (without_rope(rotated) if i % PERIOD == PERIOD - 1 else rotated for i in range(keys.n_layer))
    return decoder(keys, (plain_layer(mixer, ffn, eps) for mixer in mixers))
