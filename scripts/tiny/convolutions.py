"""Tiny models with short convolutions: LFM2 and LFM2-MoE."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from transformers import Lfm2Config, Lfm2ForCausalLM, Lfm2MoeConfig, Lfm2MoeForCausalLM

from tiny.base import CONTEXT, VOCABULARY, Case, Floats, Made, arrays, randomize, run
from tiny.dense_files import gguf_name

HIDDEN, FEED_FORWARD, EXPERT, EPSILON, THETA = 32, 48, 24, 2.0**-9, 7000.0

NAMES = {
    "operator_norm": "attn_norm",
    "ffn_norm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.out_proj": "attn_output",
    "self_attn.q_layernorm": "attn_q_norm",
    "self_attn.k_layernorm": "attn_k_norm",
    "conv.conv": "shortconv.conv",
    "conv.in_proj": "shortconv.in_proj",
    "conv.out_proj": "shortconv.out_proj",
    "feed_forward.w1": "ffn_gate",
    "feed_forward.w3": "ffn_up",
    "feed_forward.w2": "ffn_down",
    "feed_forward.gate": "ffn_gate_inp",
}


def tensors_of(model: torch.nn.Module) -> dict[str, Floats]:
    """The file's tensors; the norm before the output has the name of one after the embedding."""
    found: dict[str, Floats] = {}
    for name, array in arrays(model).items():
        layer = name.removeprefix("model.layers.").split(".")[0]
        if name == "model.embedding_norm.weight":
            found["token_embd_norm.weight"] = array
        elif name.endswith("experts.gate_up_proj"):
            found[f"blk.{layer}.ffn_gate_exps.weight"] = np.ascontiguousarray(array[:, :EXPERT])
            found[f"blk.{layer}.ffn_up_exps.weight"] = np.ascontiguousarray(array[:, EXPERT:])
        elif name.endswith("experts.down_proj"):
            found[f"blk.{layer}.ffn_down_exps.weight"] = array
        else:
            found[gguf_name(name, NAMES)] = array[:, 0] if "conv.conv" in name else array
    return found


def common(kinds: list[str], kernel: int) -> dict[str, Any]:
    """What both configurations share."""
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": FEED_FORWARD,
        "num_hidden_layers": len(kinds),
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": CONTEXT,
        "norm_eps": EPSILON,
        "conv_L_cache": kernel,
        "layer_types": kinds,
        "rope_parameters": {"rope_type": "default", "rope_theta": THETA},
        "attn_implementation": "eager",
    }


def metadata(kinds: list[str], kernel: int) -> dict[str, Any]:
    """The keys that both have: a layer without K and V is a convolution."""
    return {
        "context_length": CONTEXT,
        "embedding_length": HIDDEN,
        "block_count": len(kinds),
        "feed_forward_length": FEED_FORWARD,
        "attention.head_count": 4,
        "attention.head_count_kv": [2 if kind == "full_attention" else 0 for kind in kinds],
        "attention.layer_norm_rms_epsilon": EPSILON,
        "rope.freq_base": THETA,
        "shortconv.l_cache": kernel,
    }


def lfm2(rng: np.random.Generator) -> Made:
    """LFM2, tied, with a kernel of four."""
    kinds = ["conv", "conv", "full_attention", "conv", "full_attention"]
    config = Lfm2Config(**common(kinds, 4), block_auto_adjust_ff_dim=False, tie_word_embeddings=True)
    model = Lfm2ForCausalLM(config).eval().float()
    randomize(model, rng)
    return Made("lfm2", metadata(kinds, 4), tensors_of(model), run(model))


def lfm2moe(rng: np.random.Generator) -> Made:
    """LFM2-MoE: one dense layer first, then experts chosen with a bias on their sigmoid; untied."""
    kinds = ["conv", "full_attention", "conv", "conv"]
    config = Lfm2MoeConfig(
        **common(kinds, 3),
        moe_intermediate_size=EXPERT,
        num_dense_layers=1,
        num_experts=5,
        num_experts_per_tok=2,
        norm_topk_prob=True,
        use_expert_bias=True,
        tie_word_embeddings=False,
    )
    model = Lfm2MoeForCausalLM(config).eval().float()
    randomize(model, rng)
    tensors = tensors_of(model)
    for i, layer in enumerate(model.model.layers[1:], 1):
        bias = rng.normal(0, 0.3, 5).astype(np.float32)
        layer.feed_forward.expert_bias.copy_(torch.from_numpy(bias))
        tensors[f"blk.{i}.exp_probs_b.bias"] = bias
    keys = metadata(kinds, 3) | {
        "expert_count": 5,
        "expert_used_count": 2,
        "expert_feed_forward_length": EXPERT,
        "leading_dense_block_count": 1,
        "expert_gating_func": 2,  # sigmoid
    }
    return Made("lfm2moe", keys, tensors, run(model))


CASES: dict[str, Case] = {"lfm2": lfm2, "lfm2moe": lfm2moe}
