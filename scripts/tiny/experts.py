"""Tiny models with plain attention and a mixture of experts."""

from __future__ import annotations

from typing import Any

import numpy as np
from transformers import (
    Glm4MoeConfig,
    Glm4MoeForCausalLM,
    GraniteMoeConfig,
    GraniteMoeForCausalLM,
    GraniteMoeSharedConfig,
    GraniteMoeSharedForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from tiny.base import CONTEXT, VOCABULARY, Case, Floats, Made, randomize, run
from tiny.names import convert, randomize_buffers, rotating_pairs, unchanged

HIDDEN, EXPERT, HEAD = 32, 32, 8
EPS = 2.0**-9
COMMON: dict[str, Any] = {  # of every configuration here
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": HEAD,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": EPS,
    "pad_token_id": 0,
    "attn_implementation": "eager",
    "experts_implementation": "eager",
}


def rope(base: float, **more: Any) -> dict[str, Any]:
    """A rope without scaling."""
    return {"rope_type": "default", "rope_theta": base, **more}


def metadata(layers: int, base: float, feed_forward: int, experts: int, used: int) -> dict[str, Any]:
    """The keys that these files have in common."""
    return {
        "context_length": CONTEXT,
        "embedding_length": HIDDEN,
        "block_count": layers,
        "feed_forward_length": feed_forward,
        "attention.head_count": 6,
        "attention.head_count_kv": 2,
        "attention.key_length": HEAD,
        "attention.value_length": HEAD,
        "attention.layer_norm_rms_epsilon": EPS,
        "rope.dimension_count": HEAD,
        "rope.freq_base": base,
        "expert_count": experts,
        "expert_used_count": used,
    }


def mixtral(rng: np.random.Generator) -> Made:
    """Mixtral: a llama with experts, whose file has no key that says so but the count."""
    config = MixtralConfig(
        **COMMON,
        intermediate_size=EXPERT,
        num_hidden_layers=2,
        num_local_experts=7,
        num_experts_per_tok=3,
        tie_word_embeddings=False,
        sliding_window=None,
        rope_parameters=rope(7000.0),
    )
    model = MixtralForCausalLM(config).eval().float()
    randomize(model, rng)
    tensors = convert(model, {}, rotating_pairs(HEAD))
    return Made("llama", metadata(2, 7000.0, EXPERT, 7, 3), tensors, run(model))


def qwen2moe(rng: np.random.Generator) -> Made:
    """Qwen 2 MoE: biases, weights that do not add up to one, a shared expert behind a gate of its own."""
    config = Qwen2MoeConfig(
        **{**COMMON, "num_attention_heads": 4},
        intermediate_size=64,
        moe_intermediate_size=EXPERT,
        shared_expert_intermediate_size=64,
        num_hidden_layers=2,
        num_experts=6,
        num_experts_per_tok=2,
        norm_topk_prob=False,
        tie_word_embeddings=False,
        rope_parameters=rope(3000.0),
    )
    model = Qwen2MoeForCausalLM(config).eval().float()
    randomize(model, rng)

    def change(name: str, array: Floats) -> dict[str, Floats] | None:
        return {"ffn_gate_inp_shexp.weight": array[0]} if "shared_expert_gate" in name else None

    meta = metadata(2, 3000.0, 64, 6, 2) | {
        "attention.head_count": 4,
        "expert_feed_forward_length": EXPERT,
        "expert_shared_feed_forward_length": 64,
    }
    return Made("qwen2moe", meta, convert(model, {}, change), run(model))


def qwen3moe(rng: np.random.Generator) -> Made:
    """Qwen 3 MoE: q and k normalised per head, weights that add up to one."""
    config = Qwen3MoeConfig(
        **COMMON,
        intermediate_size=64,
        moe_intermediate_size=EXPERT,
        num_hidden_layers=2,
        num_experts=8,
        num_experts_per_tok=3,
        norm_topk_prob=True,
        tie_word_embeddings=True,
        rope_parameters=rope(20_000.0),
    )
    model = Qwen3MoeForCausalLM(config).eval().float()
    randomize(model, rng)
    meta = metadata(2, 20_000.0, 64, 8, 3) | {"expert_feed_forward_length": EXPERT}
    return Made("qwen3moe", meta, convert(model, {}, unchanged), run(model))


def granite(rng: np.random.Generator, shared: int) -> Made:
    """Granite MoE, with a shared expert of `shared` or without one: four multipliers of its own."""
    config_type = GraniteMoeSharedConfig if shared else GraniteMoeConfig
    model_type = GraniteMoeSharedForCausalLM if shared else GraniteMoeForCausalLM
    config = config_type(
        # Heads here have the embedding's share: no file says anything else.
        **{k: v for k, v in COMMON.items() if k not in ("head_dim", "num_attention_heads")},
        num_attention_heads=4,
        intermediate_size=EXPERT,
        num_hidden_layers=2,
        num_local_experts=6,
        num_experts_per_tok=3,
        tie_word_embeddings=True,
        embedding_multiplier=3.0,
        logits_scaling=0.6,
        residual_multiplier=0.4,
        attention_multiplier=0.21,
        rope_parameters=rope(2500.0),
        **({"shared_intermediate_size": shared} if shared else {}),
    )
    model = model_type(config).eval().float()
    randomize(model, rng)
    pairs = rotating_pairs(HEAD)

    def change(name: str, array: Floats) -> dict[str, Floats] | None:
        if name == "shared_mlp.input_linear.weight":
            gate, up = np.split(array, 2)
            return {"ffn_gate_shexp.weight": gate, "ffn_up_shexp.weight": up}
        return pairs(name, array)

    names = {
        "block_sparse_moe.router": "ffn_gate_inp",
        "block_sparse_moe.experts.down_proj": "ffn_down_exps.weight",
        "shared_mlp.output_linear": "ffn_down_shexp",
    }
    meta = metadata(2, 2500.0, EXPERT, 6, 3) | {
        "attention.head_count": 4,
        "attention.scale": 0.21,
        "embedding_scale": 3.0,
        "residual_scale": 0.4,
        "logit_scale": 0.6,
    }
    del meta["attention.key_length"], meta["attention.value_length"]
    if shared:
        meta["expert_shared_feed_forward_length"] = shared
    return Made("granitemoe", meta, convert(model, names, change), run(model))


def granitemoe(rng: np.random.Generator) -> Made:
    """Granite MoE without a shared expert."""
    return granite(rng, 0)


def granitemoe_shared(rng: np.random.Generator) -> Made:
    """Granite MoE with a shared expert."""
    return granite(rng, 64)


def glm4moe(rng: np.random.Generator) -> Made:
    """GLM 4.5: dense first layers, routing by sigmoid with a bias that only the choice sees, half a rope.

    The file ends with a layer for speculative decoding (NextN), which takes no part in the decoder.
    """
    config = Glm4MoeConfig(
        **COMMON,
        intermediate_size=48,
        moe_intermediate_size=EXPERT,
        num_hidden_layers=2,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_shared_experts=2,
        n_group=1,
        topk_group=1,
        first_k_dense_replace=1,
        norm_topk_prob=True,
        routed_scaling_factor=1.7,
        use_qk_norm=True,
        attention_bias=True,
        tie_word_embeddings=False,
        num_mtp_layers=0,
        partial_rotary_factor=0.5,
        rope_parameters=rope(4000.0, partial_rotary_factor=0.5),
    )
    model = Glm4MoeForCausalLM(config).eval().float()
    randomize(model, rng)
    randomize_buffers(model, rng)
    tensors = convert(model, {"post_attention_layernorm": "post_attention_norm"}, unchanged)
    nextn = {
        name.replace("blk.1.", "blk.2."): 2 * array for name, array in tensors.items() if "blk.1." in name
    }
    nextn |= {
        "blk.2.nextn.eh_proj.weight": rng.normal(0, 1, (HIDDEN, 2 * HIDDEN)).astype(np.float32),
        "blk.2.nextn.enorm.weight": np.ones(HIDDEN, np.float32),
        "blk.2.nextn.hnorm.weight": np.ones(HIDDEN, np.float32),
        "blk.2.nextn.shared_head_norm.weight": np.ones(HIDDEN, np.float32),
    }
    meta = metadata(3, 4000.0, 48, 4, 2) | {
        "rope.dimension_count": HEAD // 2,
        "expert_feed_forward_length": EXPERT,
        "expert_shared_count": 2,
        "leading_dense_block_count": 1,
        "expert_gating_func": 2,
        "expert_weights_scale": 1.7,
        "expert_weights_norm": True,
        "expert_group_count": 1,
        "expert_group_used_count": 1,
        "nextn_predict_layers": 1,
    }
    return Made("glm4moe", meta, tensors | nextn, run(model))


CASES: dict[str, Case] = {
    "mixtral": mixtral,
    "qwen2moe": qwen2moe,
    "qwen3moe": qwen3moe,
    "granitemoe": granitemoe,
    "granitemoe-shared": granitemoe_shared,
    "glm4moe": glm4moe,
}
