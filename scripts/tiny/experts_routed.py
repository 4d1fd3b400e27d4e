"""Tiny models whose experts are routed in ways of their own: Phi-3.5-MoE, SmallThinker, Llama 4, Cohere."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from transformers import (
    Cohere2MoeConfig,
    Cohere2MoeForCausalLM,
    Llama4ForCausalLM,
    Llama4TextConfig,
    PhimoeConfig,
    PhimoeForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)

from tiny.base import Case, Floats, Made, run
from tiny.experts import EPS, EXPERT, metadata, rope
from tiny.experts_more import FOUR, of_four, prepared
from tiny.names import convert, unchanged

SHARES = {k: v for k, v in FOUR.items() if k != "head_dim"}  # heads are the embedding's share


def phimoe(rng: np.random.Generator) -> Made:
    """Phi-3.5-MoE: layer norms, biases, also of the logits, and SparseMixer with a wide band."""
    config = PhimoeConfig(
        **SHARES,
        intermediate_size=EXPERT,
        num_hidden_layers=2,
        num_local_experts=5,
        num_experts_per_tok=2,
        router_jitter_noise=0.3,
        attention_bias=True,
        lm_head_bias=True,
        rope_parameters=rope(4000.0),
    )
    model = prepared(PhimoeForCausalLM(config), rng)
    names = {"model.norm.bias": "output_norm.bias", "lm_head.bias": "output.bias"}
    meta = of_four(metadata(2, 4000.0, EXPERT, 5, 2), expert_jitter=0.3)
    del meta["attention.key_length"], meta["attention.value_length"]
    return Made("phimoe", meta, convert(model, names, unchanged), run(model))


class EarlyExperts(torch.nn.Module):
    """Experts with ReLU gates, whose router has read another row before: `given` is that."""

    def __init__(self, hidden: int, width: int, n: int, used: int) -> None:
        super().__init__()
        self.gate = torch.nn.Linear(hidden, n, bias=False)
        self.experts = torch.nn.Module()
        self.experts.gate_up_proj = torch.nn.Parameter(torch.empty(n, 2 * width, hidden))
        self.experts.down_proj = torch.nn.Parameter(torch.empty(n, hidden, width))
        self.used = used
        self.given = torch.empty(0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The weighted sum of each row's experts."""
        chosen = torch.topk(self.gate(self.given), self.used, dim=-1)
        weights = torch.sigmoid(chosen.values)
        weights = weights / weights.sum(-1, keepdim=True)
        out = torch.zeros_like(x)
        for row in range(x.shape[1]):
            for expert, weight in zip(chosen.indices[0, row], weights[0, row], strict=True):
                gate, up = (self.experts.gate_up_proj[expert] @ x[0, row]).chunk(2)
                out[0, row] += weight * (self.experts.down_proj[expert] @ (torch.relu(gate) * up))
        return out


def smallthinker(rng: np.random.Generator) -> Made:
    """SmallThinker: routers before attention, ReLU, windows; the first of four layers global without a rope.

    Transformers has no class for it: this is SmolLM3 with such experts, after llama.cpp's graph.
    """
    config = SmolLM3Config(
        **SHARES,
        intermediate_size=EXPERT,
        num_hidden_layers=5,
        no_rope_layers=[0, 1, 1, 1, 0],
        use_sliding_window=True,
        sliding_window=6,
        layer_types=["full_attention", *["sliding_attention"] * 3, "full_attention"],
        tie_word_embeddings=True,
        rope_parameters=rope(5500.0),
    )
    model = SmolLM3ForCausalLM(config)
    for layer in model.model.layers:
        layer.mlp = EarlyExperts(config.hidden_size, EXPERT, 4, 2)

        def remember(module: Any, given: tuple[torch.Tensor, ...], mlp: EarlyExperts = layer.mlp) -> None:
            mlp.given = given[0]

        layer.register_forward_pre_hook(remember)
    prepared(model, rng)
    meta = of_four(
        metadata(5, 5500.0, EXPERT, 4, 2),
        expert_feed_forward_length=EXPERT,
        expert_gating_func=2,
        attention__sliding_window=6,
    )
    del meta["attention.key_length"], meta["attention.value_length"]
    return Made("smallthinker", meta, convert(model, {}, unchanged), run(model))


def llama4(rng: np.random.Generator) -> Made:
    """Llama 4: chunks, a global layer without a rope, experts in every other layer, weights before them."""
    config = Llama4TextConfig(
        **FOUR,
        intermediate_size=EXPERT,
        intermediate_size_mlp=48,
        num_hidden_layers=4,
        num_local_experts=4,
        num_experts_per_tok=2,
        interleave_moe_layer_step=2,
        attention_chunk_size=9,
        floor_scale=5,
        attn_scale=0.4,
        rope_parameters=rope(2000.0),
    )
    model = prepared(Llama4ForCausalLM(config), rng)

    def change(name: str, array: Floats) -> dict[str, Floats] | None:
        if name == "feed_forward.experts.gate_up_proj":
            gate, up = np.split(array.swapaxes(1, 2), 2, axis=1)
            return {"ffn_gate_exps.weight": gate, "ffn_up_exps.weight": up}
        if name == "feed_forward.experts.down_proj":
            return {"ffn_down_exps.weight": array.swapaxes(1, 2)}
        return None

    names = {"feed_forward.router": "ffn_gate_inp"}
    for part in ("gate", "up", "down"):
        names[f"feed_forward.{part}_proj"] = f"ffn_{part}"
        names[f"feed_forward.shared_expert.{part}_proj"] = f"ffn_{part}_shexp"
    meta = of_four(
        metadata(4, 2000.0, 48, 4, 2),
        expert_feed_forward_length=EXPERT,
        interleave_moe_layer_step=2,
        attention__sliding_window=9,
        attention__temperature_scale=0.4,
        attention__temperature_length=5,
    )
    return Made("llama4", meta, convert(model, names, change), run(model))


def cohere2moe(rng: np.random.Generator) -> Made:
    """Command A+: a dense layer with a rope first, then windows, the mean of experts and the shared one."""
    config = Cohere2MoeConfig(
        **{k: v for k, v in FOUR.items() if k != "rms_norm_eps"},
        intermediate_size=EXPERT,
        prefix_dense_intermediate_size=48,
        layer_norm_eps=EPS,
        num_hidden_layers=5,
        layer_types=["full_attention", *["sliding_attention"] * 3, "full_attention"],
        mlp_layer_types=["dense", *["sparse"] * 4],
        sliding_window=6,
        num_experts=4,
        num_experts_per_tok=2,
        num_shared_experts=1,
        expert_selection_fn="sigmoid",
        logit_scale=0.75,
        tie_word_embeddings=True,
        rope_theta=3500.0,
    )
    model = prepared(Cohere2MoeForCausalLM(config), rng)
    meta = of_four(
        metadata(5, 3500.0, 48, 4, 2),
        expert_feed_forward_length=EXPERT,
        expert_shared_count=1,
        expert_shared_feed_forward_length=EXPERT,
        expert_gating_func=2,
        expert_weights_norm=True,
        leading_dense_block_count=1,
        logit_scale=0.75,
        attention__layer_norm_epsilon=EPS,
        attention__sliding_window=6,
        attention__sliding_window_pattern=[False, True, True, True, False],
    )
    del meta["attention.layer_norm_rms_epsilon"]
    return Made("cohere2moe", meta, convert(model, {}, unchanged), run(model))


CASES: dict[str, Case] = {
    "phimoe": phimoe,
    "smallthinker": smallthinker,
    "llama4": llama4,
    "cohere2moe": cohere2moe,
}
