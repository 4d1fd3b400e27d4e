"""Tiny models with plain attention and experts, of families that came later than those of experts.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from transformers import (
    Ernie4_5_MoeConfig,
    Ernie4_5_MoeForCausalLM,
    HunYuanMoEV1Config,
    HunYuanMoEV1ForCausalLM,
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


CASES: dict[str, Case] = {
    "olmoe": olmoe,
    "ernie4_5-moe": ernie4_5_moe,
    "hunyuan-moe": hunyuan_moe,
    "minimax-m2": minimax_m2,
}
