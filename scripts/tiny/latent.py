"""Tiny models with latent attention (MLA): DeepSeek V2 Lite, V3's layout, GLM 4.7 Flash.

Transformers gives the two norms inside attention an epsilon of 1e-6, whatever the configuration says; a file
has one epsilon for all, as have llama.cpp and the configurations of DeepSeek, so here all are that one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import (
    DeepseekV2Config,
    DeepseekV2ForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    Glm4MoeLiteConfig,
    Glm4MoeLiteForCausalLM,
    MiniCPM3Config,
    MiniCPM3ForCausalLM,
)

from tiny.base import CONTEXT, VOCABULARY, Case, Floats, Made, randomize, run
from tiny.names import Change, convert, randomize_buffers, unchanged

EPS = 2.0**-9


@dataclass(frozen=True)
class Sizes:
    """Of a model: its layers, the parts of a head, and the rank of keys and values."""

    layers: int
    hidden: int
    dense: int
    expert: int
    heads: int
    plain: int
    rotated: int
    value: int
    latent: int

    def config(self) -> dict[str, Any]:
        """What every configuration here has."""
        return {
            "vocab_size": VOCABULARY,
            "hidden_size": self.hidden,
            "intermediate_size": self.dense,
            "moe_intermediate_size": self.expert,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.heads,
            "kv_lora_rank": self.latent,
            "qk_nope_head_dim": self.plain,
            "qk_rope_head_dim": self.rotated,
            "v_head_dim": self.value,
            "max_position_embeddings": CONTEXT,
            "rms_norm_eps": EPS,
            "tie_word_embeddings": False,
            "pad_token_id": 0,
            "attn_implementation": "eager",
            "experts_implementation": "eager",
        }

    def metadata(self, base: float, lead: int, experts: int, used: int, shared: int) -> dict[str, Any]:
        """The keys that these files have in common."""
        return {
            "context_length": CONTEXT,
            "embedding_length": self.hidden,
            "block_count": self.layers,
            "feed_forward_length": self.dense,
            "attention.head_count": self.heads,
            "attention.layer_norm_rms_epsilon": EPS,
            "attention.kv_lora_rank": self.latent,
            "rope.dimension_count": self.rotated,
            "rope.freq_base": base,
            "leading_dense_block_count": lead,
            "expert_count": experts,
            "expert_used_count": used,
            "expert_shared_count": shared,
            "expert_feed_forward_length": self.expert,
        }

    def absorbed(self) -> dict[str, Any]:
        """Keys of files from 2025 on: one K/V head, as wide as the latent and the rotated part."""
        return {
            "attention.head_count_kv": 1,
            "attention.key_length": self.latent + self.rotated,
            "attention.value_length": self.latent,
            "attention.key_length_mla": self.plain + self.rotated,
            "attention.value_length_mla": self.value,
        }

    def separate(self) -> dict[str, Any]:
        """Keys of older files: every head has keys and values of its own."""
        return {
            "attention.head_count_kv": self.heads,
            "attention.key_length": self.plain + self.rotated,
            "attention.value_length": self.value,
        }

    def split(self, name: str, array: Floats) -> dict[str, Floats] | None:
        """kv_b in two parts by head, that of k transposed, so that it can be applied to queries."""
        if name != "self_attn.kv_b_proj.weight":
            return None
        heads = array.reshape(self.heads, self.plain + self.value, self.latent)
        return {
            "attn_k_b.weight": heads[:, : self.plain].swapaxes(1, 2),
            "attn_v_b.weight": heads[:, self.plain :],
        }


# llama.cpp knows V2 Lite, whose queries have no rank, by its number of layers.
LITE = Sizes(26, hidden=16, dense=8, expert=16, heads=2, plain=6, rotated=4, value=8, latent=12)
FOUR = Sizes(2, hidden=32, dense=48, expert=0, heads=4, plain=16, rotated=8, value=24, latent=32)
FULL = Sizes(2, hidden=32, dense=48, expert=32, heads=3, plain=16, rotated=8, value=24, latent=32)
QUERY = 32  # the rank of queries
NAMES = {
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.kv_b_proj": "attn_kv_b",
}
YARN = {"rope_type": "yarn", "factor": 3.0, "original_max_position_embeddings": 32}


def yarn(all_dimensions: float) -> dict[str, Any]:
    """The keys of a scaled rope. Its multiplier is stored as a tenth, for llama.cpp's reasons."""
    return {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 3.0,
        "rope.scaling.original_context_length": 32,
        "rope.scaling.yarn_log_multiplier": 0.1 * all_dimensions,
    }


def prepare(model: torch.nn.Module, rng: np.random.Generator) -> None:
    """Random weights, one epsilon."""
    randomize(model, rng)
    randomize_buffers(model, rng)
    for name, module in model.named_modules():
        if name.endswith("a_layernorm"):
            module.variance_epsilon = EPS


def v2_lite(rng: np.random.Generator, change: Change, keys: dict[str, Any]) -> Made:
    """DeepSeek V2 Lite: whole queries, softmax, weights that do not add up to one."""
    config = DeepseekV2Config(
        **LITE.config(),
        q_lora_rank=None,
        n_routed_experts=5,
        num_experts_per_tok=2,
        n_shared_experts=2,
        first_k_dense_replace=24,
        topk_method="greedy",
        n_group=1,
        topk_group=1,
        norm_topk_prob=False,
        routed_scaling_factor=1.3,
        rope_parameters={**YARN, "rope_theta": 3000.0, "mscale": 0.7, "mscale_all_dim": 0.7},
    )
    model = DeepseekV2ForCausalLM(config).eval().float()
    prepare(model, rng)
    meta = LITE.metadata(3000.0, lead=24, experts=5, used=2, shared=2) | yarn(0.7) | keys
    meta |= {"expert_weights_scale": 1.3, "expert_gating_func": 1}
    return Made("deepseek2", meta, convert(model, NAMES, change), run(model))


def deepseek2_lite(rng: np.random.Generator) -> Made:
    """V2 Lite in the layout of recent files."""
    return v2_lite(rng, LITE.split, LITE.absorbed())


def deepseek2_lite_old(rng: np.random.Generator) -> Made:
    """V2 Lite in the layout of files before April 2025."""
    return v2_lite(rng, unchanged, LITE.separate())


def deepseek3(rng: np.random.Generator) -> Made:
    """DeepSeek V3: low-rank queries, sigmoid, the best groups by the sum of their two best experts."""
    config = DeepseekV3Config(
        **FULL.config(),
        q_lora_rank=QUERY,
        n_routed_experts=8,
        num_experts_per_tok=3,
        n_shared_experts=1,
        first_k_dense_replace=1,
        n_group=4,
        topk_group=2,
        norm_topk_prob=True,
        routed_scaling_factor=2.1,
        num_mtp_layers=0,
        rope_parameters={**YARN, "rope_theta": 5000.0, "mscale": 1.0, "mscale_all_dim": 1.0},
    )
    model = DeepseekV3ForCausalLM(config).eval().float()
    prepare(model, rng)
    meta = FULL.metadata(5000.0, lead=1, experts=8, used=3, shared=1) | yarn(1.0) | FULL.absorbed()
    meta |= {
        "attention.q_lora_rank": QUERY,
        "expert_weights_scale": 2.1,
        "expert_weights_norm": True,
        "expert_gating_func": 2,
        "expert_group_count": 4,
        "expert_group_used_count": 2,
    }
    return Made("deepseek2", meta, convert(model, NAMES, FULL.split), run(model))


def glm4_lite(rng: np.random.Generator) -> Made:
    """GLM 4.7 Flash: V3's layout without groups and without a scaled rope."""
    config = Glm4MoeLiteConfig(
        **FULL.config(),
        q_lora_rank=QUERY,
        n_routed_experts=6,
        num_experts_per_tok=2,
        n_shared_experts=1,
        n_group=1,
        topk_group=1,
        norm_topk_prob=True,
        routed_scaling_factor=1.6,
        rope_parameters={"rope_type": "default", "rope_theta": 8000.0},
    )
    model = Glm4MoeLiteForCausalLM(config).eval().float()
    prepare(model, rng)
    meta = FULL.metadata(8000.0, lead=1, experts=6, used=2, shared=1) | FULL.absorbed()
    meta |= {
        "attention.q_lora_rank": QUERY,
        "expert_weights_scale": 1.6,
        "expert_weights_norm": True,
        "expert_gating_func": 2,
        "expert_group_count": 1,
        "expert_group_used_count": 1,
    }
    return Made("deepseek2", meta, convert(model, NAMES, FULL.split), run(model))


def minicpm3(rng: np.random.Generator) -> Made:
    """MiniCPM 3: latent attention in a dense model with multipliers, halves of LongRoPE."""
    factors = {"long_factor": [2.0, 3.5, 5.0, 7.0], "short_factor": [1.0, 1.2, 1.5, 2.0]}
    config = MiniCPM3Config(
        **{name: value for name, value in FOUR.config().items() if name != "moe_intermediate_size"},
        q_lora_rank=QUERY,
        scale_emb=5.0,
        scale_depth=1.1,
        dim_model_base=20,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 6000.0,
            "original_max_position_embeddings": 24,
            "attention_factor": 1.2,
            **factors,
        },
    )
    model = MiniCPM3ForCausalLM(config).eval().float()
    prepare(model, rng)
    names = {key: value for key, value in NAMES.items() if "mlp" not in key}
    tensors = convert(model, names, unchanged)
    tensors |= {f"rope_factors_{name[:-7]}.weight": np.array(factors[name], np.float32) for name in factors}
    unused = "leading_dense_block_count", "expert_"
    meta = {
        key: value
        for key, value in FOUR.metadata(6000.0, lead=0, experts=1, used=1, shared=0).items()
        if not key.startswith(unused)
    }
    meta |= FOUR.separate() | {
        "attention.q_lora_rank": QUERY,
        "rope.scaling.original_context_length": 24,
        "rope.scaling.attn_factor": 1.2,
        "embedding_scale": 5.0,
        "residual_scale": 1.1 * FOUR.layers**-0.5,
        "logit_scale": FOUR.hidden / 20,
    }
    return Made("minicpm3", meta, tensors, run(model))


CASES: dict[str, Case] = {
    "deepseek2-lite": deepseek2_lite,
    "deepseek2-lite-old": deepseek2_lite_old,
    "deepseek3": deepseek3,
    "glm4-flash": glm4_lite,
    "minicpm3": minicpm3,
}
