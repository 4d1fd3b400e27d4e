"""Tiny models with plain attention and experts, of families that came later than those of experts.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from transformers import (
    Dots1Config,
    Dots1ForCausalLM,
    Ernie4_5_MoeConfig,
    Ernie4_5_MoeForCausalLM,
    ExaoneMoeConfig,
    ExaoneMoeForCausalLM,
    HunYuanMoEV1Config,
    HunYuanMoEV1ForCausalLM,
    HYV3Config,
    HYV3ForCausalLM,
    MellumConfig,
    MellumForCausalLM,
    MiniMaxM2Config,
    MiniMaxM2ForCausalLM,
    OlmoeConfig,
    OlmoeForCausalLM,
)

from tiny.base import Case, Floats, Made, randomize, run
from tiny.experts import COMMON, EXPERT, HEAD, metadata, rope
from tiny.names import convert, randomize_buffers, unchanged

FOUR: dict[str, Any] = {**COMMON, "num_attention_heads": 4}  # heads: the embedding's share each


def prepared(model: torch.nn.Module, rng: np.random.Generator) -> torch.nn.Module:
    """The model with random weights."""
    model = model.eval().float()
    randomize(model, rng)
    randomize_buffers(model, rng)
    return model


def of_four(made: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The keys of a file whose model has four heads; `__` stands for a point in their names."""
    return made | {"attention.head_count": 4} | {key.replace("__", "."): value for key, value in more.items()}


def olmoe(rng: np.random.Generator) -> Made:
    """OLMoE: q and k normalised whole, weights that do not add up to one."""
    config = OlmoeConfig(
        **{**{k: v for k, v in FOUR.items() if k != "head_dim"}, "num_key_value_heads": 4},
        intermediate_size=EXPERT,
        num_hidden_layers=2,
        num_experts=5,
        num_experts_per_tok=2,
        rope_parameters=rope(6000.0),
    )
    model = prepared(OlmoeForCausalLM(config), rng)
    meta = of_four(metadata(2, 6000.0, EXPERT, 5, 2), attention__head_count_kv=4)
    del meta["attention.key_length"], meta["attention.value_length"]
    return Made("olmoe", meta, convert(model, {}, unchanged), run(model))


def ernie4_5_moe(rng: np.random.Generator) -> Made:
    """ERNIE 4.5 with experts: a dense layer first, a softmax with a bias for the choice, shared experts."""
    config = Ernie4_5_MoeConfig(
        **{k: v for k, v in FOUR.items() if k != "head_dim"},
        intermediate_size=64,
        moe_intermediate_size=EXPERT,
        num_hidden_layers=3,
        moe_num_experts=5,
        moe_k=2,
        moe_num_shared_experts=1,
        moe_layer_start_index=1,
        tie_word_embeddings=True,
        rope_parameters=rope(3000.0),
    )
    model = prepared(Ernie4_5_MoeForCausalLM(config), rng)
    for layer in model.model.layers[1:]:
        bias = layer.mlp.gate.moe_statics.e_score_correction_bias
        bias.data = torch.from_numpy(rng.normal(0, 0.1, tuple(bias.shape)).astype(np.float32))

    def change(name: str, array: Floats) -> dict[str, Floats] | None:
        return {"exp_probs_b.bias": array[0]} if name.endswith("e_score_correction_bias") else None

    meta = of_four(
        metadata(3, 3000.0, 64, 5, 2),
        expert_feed_forward_length=EXPERT,
        expert_shared_count=1,
        expert_shared_feed_forward_length=EXPERT,
        leading_dense_block_count=1,
        interleave_moe_layer_step=1,
    )
    del meta["attention.key_length"], meta["attention.value_length"]
    return Made("ernie4_5-moe", meta, convert(model, {}, change), run(model))


def hunyuan_moe(rng: np.random.Generator) -> Made:
    """Hunyuan with experts: q and k normalised after the rope, a shared expert."""
    config = HunYuanMoEV1Config(
        **FOUR,
        intermediate_size=EXPERT,
        num_hidden_layers=2,
        num_experts=4,
        moe_topk=2,
        tie_word_embeddings=True,
        rope_parameters=rope(9000.0),
    )
    model = prepared(HunYuanMoEV1ForCausalLM(config), rng)
    names = {
        "self_attn.query_layernorm": "attn_q_norm",
        "self_attn.key_layernorm": "attn_k_norm",
        "mlp.gate.wg": "ffn_gate_inp",
        "mlp.shared_mlp.gate_proj": "ffn_gate_shexp",
        "mlp.shared_mlp.up_proj": "ffn_up_shexp",
        "mlp.shared_mlp.down_proj": "ffn_down_shexp",
    }
    meta = of_four(
        metadata(2, 9000.0, EXPERT, 4, 2),
        expert_feed_forward_length=EXPERT,
        expert_shared_count=1,
        expert_shared_feed_forward_length=EXPERT,
    )
    return Made("hunyuan-moe", meta, convert(model, names, unchanged), run(model))


def minimax_m2(rng: np.random.Generator) -> Made:
    """MiniMax M2: q and k normalised whole, half a rope, a sigmoid with a bias for the choice."""
    config = MiniMaxM2Config(
        **FOUR,
        intermediate_size=EXPERT,
        num_hidden_layers=2,
        num_local_experts=5,
        num_experts_per_tok=2,
        rope_parameters=rope(8000.0, partial_rotary_factor=0.5),
    )
    model = prepared(MiniMaxM2ForCausalLM(config), rng)
    meta = of_four(
        metadata(2, 8000.0, EXPERT, 5, 2),
        rope__dimension_count=HEAD // 2,
        expert_feed_forward_length=EXPERT,
        expert_gating_func=2,
    )
    names = {"mlp.e_score_correction_bias": "exp_probs_b.bias"}
    return Made("minimax-m2", meta, convert(model, names, unchanged), run(model))


SIGMOID: dict[str, Any] = {  # of files whose router is DeepSeek V3's
    "expert_gating_func": 2,
    "expert_weights_scale": 1.7,
    "expert_weights_norm": True,
    "expert_shared_count": 1,
    "leading_dense_block_count": 1,
    "expert_feed_forward_length": EXPERT,
}
ROUTED: dict[str, Any] = {  # of their configurations
    "intermediate_size": 48,
    "moe_intermediate_size": EXPERT,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.7,
    "n_group": 1,
    "topk_group": 1,
}


def dots1(rng: np.random.Generator) -> Made:
    """dots.llm1: q and k normalised, a dense layer first, DeepSeek V3's router without groups."""
    config = Dots1Config(
        **{**FOUR, "num_key_value_heads": 4},
        **ROUTED,
        n_routed_experts=5,
        n_shared_experts=1,
        first_k_dense_replace=1,
        num_hidden_layers=2,
        rope_parameters=rope(7500.0),
    )
    model = prepared(Dots1ForCausalLM(config), rng)
    meta = of_four(metadata(2, 7500.0, 48, 5, 2) | SIGMOID, attention__head_count_kv=4)
    return Made("dots1", meta, convert(model, {}, unchanged), run(model))


def exaone_moe(rng: np.random.Generator) -> Made:
    """K-EXAONE: windows in three of four layers, no rope in the others, a dense layer first."""
    config = ExaoneMoeConfig(
        **FOUR,
        **ROUTED,
        num_experts=4,
        num_shared_experts=1,
        first_k_dense_replace=1,
        num_hidden_layers=4,
        sliding_window=6,
        sliding_window_pattern=4,
        rope_parameters=rope(4500.0),
    )
    model = prepared(ExaoneMoeForCausalLM(config), rng)
    meta = of_four(
        metadata(4, 4500.0, 48, 4, 2) | SIGMOID,
        expert_shared_feed_forward_length=EXPERT,
        attention__sliding_window=6,
        attention__sliding_window_pattern=[True, True, True, False],
    )
    return Made("exaone-moe", meta, convert(model, {}, unchanged), run(model))


def hy_v3(rng: np.random.Generator) -> Made:
    """Hunyuan 3: a dense layer first, a sigmoid with a bias, whose tensor's name has no ending."""
    config = HYV3Config(
        **FOUR,
        intermediate_size=48,
        moe_intermediate_size=EXPERT,
        num_experts=5,
        num_experts_per_tok=2,
        num_shared_experts=1,
        router_scaling_factor=1.6,
        num_hidden_layers=3,
        rope_parameters=rope(6500.0),
    )
    model = prepared(HYV3ForCausalLM(config), rng)
    meta = of_four(
        metadata(3, 6500.0, 48, 5, 2),
        expert_feed_forward_length=EXPERT,
        expert_shared_feed_forward_length=EXPERT,
        expert_weights_scale=1.6,
        expert_weights_norm=True,
        expert_gating_func=2,
    )
    names = {"mlp.e_score_correction_bias": "exp_probs_b"}
    return Made("hy_v3", meta, convert(model, names, unchanged), run(model))


def mellum(rng: np.random.Generator) -> Made:
    """Mellum 2: windows in some layers, with a rope of another base; YaRN in the others."""
    scaled = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
    config = MellumConfig(
        **FOUR,
        intermediate_size=64,
        moe_intermediate_size=EXPERT,
        num_experts=4,
        num_experts_per_tok=2,
        num_hidden_layers=3,
        sliding_window=7,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters={
            "full_attention": {**scaled, "rope_theta": 8000.0},
            "sliding_attention": rope(600.0),
        },
    )
    model = prepared(MellumForCausalLM(config), rng)
    meta = of_four(
        metadata(3, 8000.0, 64, 4, 2),
        expert_feed_forward_length=EXPERT,
        rope__freq_base_swa=600.0,
        rope__scaling__type="yarn",
        rope__scaling__factor=4.0,
        rope__scaling__original_context_length=16,
        attention__sliding_window=7,
        attention__sliding_window_pattern=[True, False, True],
    )
    return Made("mellum", meta, convert(model, {}, unchanged), run(model))


CASES: dict[str, Case] = {
    "dots1": dots1,
    "exaone-moe": exaone_moe,
    "hy_v3": hy_v3,
    "mellum": mellum,
    "olmoe": olmoe,
    "ernie4_5-moe": ernie4_5_moe,
    "hunyuan-moe": hunyuan_moe,
    "minimax-m2": minimax_m2,
}
