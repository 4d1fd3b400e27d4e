"""How the files of dense models are written: names of tensors, and the metadata that all have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedConfig

from tiny.base import CONTEXT, VOCABULARY, Floats, Made, adjacent, arrays, randomize, run

HIDDEN, FEED_FORWARD = 32, 64
EPSILON = 2.0**-9
PLAIN_ROPE = {"rope_type": "default", "rope_theta": 5000.0}

NAMES = {  # of a layer's tensors, in transformers and in GGUF
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
WHOLE = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "model.norm.bias": "output_norm.bias",
    "lm_head.weight": "output.weight",
}
# Norms after attention and feed-forward only, or after as well as before.
AFTER = {
    "post_attention_layernorm": "post_attention_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
AROUND = AFTER | {"pre_feedforward_layernorm": "ffn_norm"}


def sizes(**other: Any) -> dict[str, Any]:
    """The arguments that the configurations share, with unusual values; `other` add and override."""
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": FEED_FORWARD,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": EPSILON,
        "rope_parameters": dict(PLAIN_ROPE),
        "tie_word_embeddings": False,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "attn_implementation": "eager",
    } | other


def keys(config: PreTrainedConfig, **other: Any) -> dict[str, Any]:
    """The metadata that every file has; `other` add, with `__` for the dots of a key."""
    found = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
    }
    if hasattr(config, "rms_norm_eps"):
        found["attention.layer_norm_rms_epsilon"] = config.rms_norm_eps
    found |= {key.replace("__", "."): value for key, value in other.items()}
    if "rope_theta" in config.rope_parameters:
        found["rope.freq_base"] = config.rope_parameters["rope_theta"]
    return found


def head_keys(size: int) -> dict[str, int]:
    """The metadata of heads that are not the embedding's share."""
    return {
        "attention__key_length": size,
        "attention__value_length": size,
        "rope__dimension_count": size,
    }


def gguf_name(name: str, names: dict[str, str]) -> str:
    """A tensor's name in the file."""
    if name in WHOLE:
        return WHOLE[name]
    _, _, layer, rest = name.split(".", 3)
    module, kind = rest.rsplit(".", 1)
    return f"blk.{layer}.{names[module]}.{kind}"


def write(
    architecture: str,
    model: torch.nn.Module,
    rng: np.random.Generator,
    metadata: dict[str, Any],
    *,
    names: dict[str, str] | None = None,
    adjacent_size: int | None = None,
    add_to_norms: float = 0.0,
    special: Callable[[str, tuple[int, ...], np.random.Generator], Floats | None] | None = None,
) -> Made:
    """Give a model random weights and write them by the names of the file.

    `names` add to NAMES. `adjacent_size`: rows of q and k are reordered within heads of this size.
    """
    model = model.eval().float()
    randomize(model, rng, special, norms_at_zero=lambda _: add_to_norms != 0)
    tensors = {}
    for name, array in arrays(model).items():
        if adjacent_size and ("q_proj" in name or "k_proj" in name):
            array = adjacent(array, adjacent_size)
        if name.endswith("norm.weight"):
            array = array + np.float32(add_to_norms)
        tensors[gguf_name(name, NAMES | (names or {}))] = array
    return Made(architecture, metadata, tensors, run(model))
