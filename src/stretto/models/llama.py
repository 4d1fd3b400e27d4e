"""Llama and models of its architecture: Llama 2 and 3, Mistral, TinyLlama, SmolLM; with experts: Mixtral.

Granite Code and some others have biases of attention and feed-forward as well.
"""

from __future__ import annotations

from stretto.models.common import (
    Keys,
    attention,
    attention_biases,
    decoder,
    head_size,
    mixture,
    plain_decoder,
    refuse_caps,
    with_windows,
)
from stretto.models.rope import read_rope
from stretto.models.spec import ModelSpec, plain_layer
from stretto.weights.gguf import GGUF


def read(file: GGUF) -> ModelSpec:
    """The spec of a llama file."""
    keys = Keys(file, "llama")
    rope = read_rope(file, "llama", head_size(file, "llama"), "adjacent")
    mixer = attention(keys, rope, **attention_biases(keys))
    if not keys.count("expert_count"):
        return with_windows(keys, plain_decoder(keys, mixer))
    refuse_caps(keys)
    apart = keys.has("blk.0.ffn_up.0.weight")
    ffn = mixture(keys, n_ff=keys.size("feed_forward_length"), apart=apart)
    return with_windows(keys, decoder(keys, (plain_layer(mixer, ffn, keys.eps),) * keys.n_layer))
