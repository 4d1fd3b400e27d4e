"""Llama and models of its architecture: Llama 2 and 3, Mistral, TinyLlama, SmolLM; with experts: Mixtral.

Granite Code and some others have biases of attention and feed-forward as well.
"""

from __future__ import annotations

from stretto.models import common
from stretto.models.common import Keys
from stretto.models.spec import ModelSpec


def read(keys: Keys) -> ModelSpec:
    """The spec of a llama file."""
    mixer = common.attention(keys, "adjacent", **common.attention_biases(keys))
    if not keys.count("expert_count"):
        return common.add_windows(keys, common.plain_decoder(keys, mixer))
    common.refuse_caps(keys)
    apart = keys.has("blk.0.ffn_up.0.weight")
    ffn = common.mixture(keys, n_ff=keys.size("feed_forward_length"), apart=apart)
    return common.add_windows(keys, common.uniform_decoder(keys, mixer, ffn))
