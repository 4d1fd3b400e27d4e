"""Tiny models with Mamba-2 layers: Granite 4, Nemotron-H, Falcon-H1."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from transformers import (
    FalconH1Config,
    FalconH1ForCausalLM,
    GraniteMoeHybridConfig,
    GraniteMoeHybridForCausalLM,
    Mamba2Config,
    Mamba2ForCausalLM,
    NemotronHConfig,
    NemotronHForCausalLM,
)

from tiny.base import CONTEXT, VOCABULARY, Case, Floats, Made, adjacent, arrays, randomize, run
from tiny.dense_files import gguf_name

HIDDEN, FEED_FORWARD, EXPERT, EPSILON, THETA = 32, 40, 16, 2.0**-9, 6000.0
HEADS, HEAD, STATE = 8, 8, 10  # of a Mamba-2 layer

NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "pre_ff_layernorm": "ffn_norm",
    "norm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mixer.q_proj": "attn_q",
    "mixer.k_proj": "attn_k",
    "mixer.v_proj": "attn_v",
    "mixer.o_proj": "attn_output",
    "mixer.up_proj": "ffn_up",
    "mixer.down_proj": "ffn_down",
    "mixer.gate": "ffn_gate_inp",
    "mixer.shared_experts.up_proj": "ffn_up_shexp",
    "mixer.shared_experts.down_proj": "ffn_down_shexp",
    "mamba.in_proj": "ssm_in",
    "mamba.out_proj": "ssm_out",
    "mamba.conv1d": "ssm_conv1d",
    "mamba.norm": "ssm_norm",
    "feed_forward.gate_proj": "ffn_gate",
    "feed_forward.up_proj": "ffn_up",
    "feed_forward.down_proj": "ffn_down",
    "block_sparse_moe.router": "ffn_gate_inp",
}


def special(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> Floats | None:
    """Decays for which a state lasts some ten tokens."""
    return rng.normal(-2.5, 1.0, shape) if name.endswith("A_log") else None


def mamba_tensor(name: str, array: Floats, groups: int) -> tuple[str, Floats]:
    """A Mamba-2 tensor's name and layout in the file: A and D as columns, the norm group by group."""
    layer, rest = name.removeprefix("model.layers.").split(".", 1)
    if rest.endswith("A_log"):
        return f"blk.{layer}.ssm_a", -np.exp(array)[:, None]
    if rest.endswith(".D"):
        return f"blk.{layer}.ssm_d", array[:, None]
    if rest.endswith("dt_bias"):
        return f"blk.{layer}.ssm_dt.bias", array
    if rest.endswith("conv1d.weight"):
        array = array[:, 0]
    elif rest.endswith(".norm.weight"):
        array = array.reshape(groups, -1)
    return gguf_name(name, NAMES), array


def metadata(layers: int, groups: int, kernel: int) -> dict[str, Any]:
    """The keys that all have."""
    return {
        "context_length": CONTEXT,
        "embedding_length": HIDDEN,
        "block_count": layers,
        "attention.head_count": 4,
        "attention.layer_norm_rms_epsilon": EPSILON,
        "ssm.conv_kernel": kernel,
        "ssm.state_size": STATE,
        "ssm.group_count": groups,
        "ssm.inner_size": HEADS * HEAD,
        "ssm.time_step_rank": HEADS,
    }


def granite(rng: np.random.Generator, kinds: list[str], experts: int) -> Made:
    """Granite 4; its norm goes over all heads in transformers and by groups in llama.cpp, so one group."""
    config = GraniteMoeHybridConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=EXPERT,
        shared_intermediate_size=FEED_FORWARD,
        num_hidden_layers=len(kinds),
        layer_types=["full_attention" if kind == "attention" else "linear_attention" for kind in kinds],
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        rms_norm_eps=EPSILON,
        tie_word_embeddings=not experts,
        rope_parameters={"rope_type": "default", "rope_theta": THETA},
        position_embedding_type="rope" if experts else None,
        embedding_multiplier=1.5,
        attention_multiplier=0.25,
        residual_multiplier=0.75,
        logits_scaling=1.25,
        num_local_experts=experts,
        num_experts_per_tok=2 if experts else 0,
        mamba_n_heads=HEADS,
        mamba_d_head=HEAD,
        mamba_n_groups=1,
        mamba_d_state=STATE,
        mamba_d_conv=4,
        mamba_expand=2,
        mamba_conv_bias=True,
        attn_implementation="eager",
    )
    model = GraniteMoeHybridForCausalLM(config).eval().float()
    randomize(model, rng, special)
    tensors: dict[str, Floats] = {}
    for name, array in arrays(model).items():
        if ".mamba." in name:
            name, array = mamba_tensor(name, array, groups=1)
            tensors[name] = array
        elif "shared_mlp" in name or ".experts." in name:
            tensors |= granite_feed_forward(name, array, bool(experts))
        else:
            if "q_proj" in name or "k_proj" in name:
                array = adjacent(array, HIDDEN // 4)
            tensors[gguf_name(name, NAMES)] = array
    keys = metadata(len(kinds), 1, 4) | {
        "feed_forward_length": EXPERT if experts else FEED_FORWARD,
        "attention.head_count_kv": [2 if kind == "attention" else 0 for kind in kinds],
        "attention.scale": 0.25,
        "embedding_scale": 1.5,
        "residual_scale": 0.75,
        "logit_scale": 1.25,
        "rope.dimension_count": HIDDEN // 4,
        "rope.freq_base": THETA,
        "rope.scaling.finetuned": bool(experts),  # here: whether there is a rope at all
    }
    if experts:
        keys |= {"expert_count": experts, "expert_used_count": 2}
        keys |= {"expert_shared_feed_forward_length": FEED_FORWARD}
    return Made("granitehybrid", keys, tensors, run(model))


def granite_feed_forward(name: str, array: Floats, has_experts: bool) -> dict[str, Floats]:
    """Gate and up apart; the shared expert is the whole feed-forward of a model without experts."""
    layer = name.split(".")[2]
    kind = "_exps" if ".experts." in name else "_shexp" if has_experts else ""
    if "output_linear" in name or "down_proj" in name:
        return {f"blk.{layer}.ffn_down{kind}.weight": array}
    gate, up = np.split(array, 2, axis=-2)
    return {f"blk.{layer}.ffn_gate{kind}.weight": gate, f"blk.{layer}.ffn_up{kind}.weight": up}


def granitehybrid(rng: np.random.Generator) -> Made:
    """Granite 4 Micro: no experts, no rope, tied."""
    return granite(rng, ["mamba", "attention", "mamba", "mamba", "attention"], experts=0)


def granitehybrid_moe(rng: np.random.Generator) -> Made:
    """Granite 4 Tiny: experts and a shared one; with rope, as converted Bamba models have it; untied."""
    return granite(rng, ["mamba", "attention", "mamba"], experts=4)


def nemotron(rng: np.random.Generator, kinds: list[str], **settings: Any) -> tuple[Any, dict[str, Floats]]:
    """A Nemotron-H: a layer is Mamba-2 (two groups), attention without rope, or an MLP with relu².

    transformers raises time steps to time_step_min when it runs many tokens at once, not when it runs one;
    llama.cpp never does. Here it is tiny, so that they agree.
    """
    config = NemotronHConfig(
        **settings,
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        layers_block_type=kinds,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=12,
        max_position_embeddings=CONTEXT,
        layer_norm_epsilon=EPSILON,
        tie_word_embeddings=False,
        ssm_state_size=STATE,
        mamba_num_heads=HEADS,
        mamba_head_dim=HEAD,
        n_groups=2,
        conv_kernel=3,
        use_conv_bias=True,
        time_step_min=1e-9,
        attn_implementation="eager",
    )
    model = NemotronHForCausalLM(config).eval().float()
    randomize(model, rng, special)
    outer = {"model.embeddings.weight": "token_embd.weight", "model.norm_f.weight": "output_norm.weight"}
    tensors: dict[str, Floats] = {}
    for name, array in arrays(model).items():
        layer = name.removeprefix("model.layers.").split(".")[0]
        if name in outer:
            tensors[outer[name]] = array
        elif ".mixer." in name and kinds[int(layer)] == "linear_attention":
            name, array = mamba_tensor(name.replace(".mixer.", ".mamba."), array, groups=2)
            tensors[name] = array
        elif ".mixer.experts." in name:
            tensors[f"blk.{layer}.ffn_{name.split('.')[-1].removesuffix('_proj')}_exps.weight"] = array
        else:
            tensors[gguf_name(name, NAMES)] = array
    return model, tensors


def nemotron_keys(kinds: list[str], feed_forward: int) -> dict[str, Any]:
    """The metadata of a Nemotron-H: a layer has a feed-forward, K and V, or neither."""
    return metadata(len(kinds), 2, 3) | {
        "feed_forward_length": [feed_forward if kind in ("mlp", "moe") else 0 for kind in kinds],
        "attention.head_count_kv": [2 if kind == "full_attention" else 0 for kind in kinds],
        "attention.key_length": 12,
        "attention.value_length": 12,
        "attention.layer_norm_epsilon": EPSILON,  # files have both
        "rope.scaling.finetuned": False,
    }


def nemotron_h(rng: np.random.Generator) -> Made:
    """Nemotron-H, with biases in its MLPs; untied."""
    kinds = ["linear_attention", "mlp", "full_attention", "mlp", "linear_attention", "full_attention"]
    model, tensors = nemotron(rng, kinds, intermediate_size=FEED_FORWARD, mlp_bias=True)
    return Made("nemotron_h", nemotron_keys(kinds, FEED_FORWARD), tensors, run(model))


def nemotron_h_moe(rng: np.random.Generator) -> Made:
    """Nemotron 3 Nano: experts without a gate, chosen with a bias on their sigmoid, and a shared one."""
    kinds = ["linear_attention", "moe", "full_attention", "moe", "linear_attention"]
    model, tensors = nemotron(
        rng,
        kinds,
        n_routed_experts=6,
        num_experts_per_tok=3,
        moe_intermediate_size=EXPERT,
        moe_shared_expert_intermediate_size=FEED_FORWARD,
        routed_scaling_factor=1.75,
        norm_topk_prob=True,
    )
    for i in (1, 3):
        bias = rng.normal(0, 0.3, 6).astype(np.float32)
        model.model.layers[i].mixer.gate.e_score_correction_bias.copy_(torch.from_numpy(bias))
        tensors[f"blk.{i}.exp_probs_b.bias"] = bias
    keys = nemotron_keys(kinds, EXPERT) | {
        "expert_count": 6,
        "expert_used_count": 3,
        "expert_shared_count": 1,
        "expert_feed_forward_length": EXPERT,
        "expert_shared_feed_forward_length": FEED_FORWARD,
        "expert_weights_norm": True,
        "expert_weights_scale": 1.75,
        "expert_group_count": 1,
    }
    return Made("nemotron_h_moe", keys, tensors, run(model))


def falcon(rng: np.random.Generator, has_norm: bool) -> Made:
    """Falcon-H1: attention and Mamba-2 side by side; files have the multipliers in their weights."""
    multipliers = {
        "embedding_multiplier": 1.5,
        "lm_head_multiplier": 0.75,
        "mlp_multipliers": [0.5, 1.25],
        "key_multiplier": 0.75,
        "attention_in_multiplier": 1.25,
        "attention_out_multiplier": 0.5,
        "ssm_in_multiplier": 1.5,
        "ssm_out_multiplier": 0.75,
        "ssm_multipliers": [0.5, 0.75, 1.25, 1.5, 0.25],
    }
    config = FalconH1Config(
        **multipliers,
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=FEED_FORWARD,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=12,
        max_position_embeddings=CONTEXT,
        rms_norm_eps=EPSILON,
        tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": THETA},
        mamba_d_ssm=HEADS * HEAD,
        mamba_n_heads=HEADS,
        mamba_d_head=HEAD,
        mamba_n_groups=2,
        mamba_d_state=STATE,
        mamba_d_conv=4,
        mamba_conv_bias=True,
        mamba_rms_norm=has_norm,
        mamba_norm_before_gate=False,  # the only order that llama.cpp has
        attn_implementation="eager",
    )
    model = FalconH1ForCausalLM(config).eval().float()
    randomize(model, rng, special)
    tensors: dict[str, Floats] = {}
    for name, array in arrays(model).items():
        array = array * falcon_multiplier(name, config)
        if ".mamba." in name:
            name, array = mamba_tensor(name, array, groups=2)
        else:
            name = gguf_name(name.replace("final_layernorm", "norm"), NAMES)
            name = name.removesuffix(".weight") if "ffn_norm" in name else name  # so it is in files
        tensors[name] = array.astype(np.float32)
    keys = metadata(3, 2, 4) | {
        "feed_forward_length": FEED_FORWARD,
        "attention.head_count_kv": 2,
        "attention.key_length": 12,
        "attention.value_length": 12,
        "rope.freq_base": THETA,
    }
    return Made("falcon-h1", keys, tensors, run(model))


def falcon_multiplier(name: str, config: FalconH1Config) -> Any:
    """The factor of a tensor: a number, or a column for the parts of one projection."""
    if "mamba.in_proj" in name:
        inner, group = HEADS * HEAD, 2 * STATE
        parts = np.repeat(config.ssm_multipliers, [inner, inner, group, group, HEADS])
        return (parts * config.ssm_in_multiplier)[:, None]
    factors = {
        "embed_tokens": config.embedding_multiplier,
        "lm_head": config.lm_head_multiplier,
        "gate_proj": config.mlp_multipliers[0],
        "down_proj": config.mlp_multipliers[1],
        "q_proj": config.attention_in_multiplier,
        "k_proj": config.attention_in_multiplier * config.key_multiplier,
        "v_proj": config.attention_in_multiplier,
        "o_proj": config.attention_out_multiplier,
        "mamba.out_proj": config.ssm_out_multiplier,
    }
    return next((factor for part, factor in factors.items() if part in name), 1.0)


def falcon_h1(rng: np.random.Generator) -> Made:
    """Falcon-H1 with the norm after the gate."""
    return falcon(rng, has_norm=True)


def falcon_h1_plain(rng: np.random.Generator) -> Made:
    """Falcon-H1 without that norm."""
    return falcon(rng, has_norm=False)


def mamba2(rng: np.random.Generator) -> Made:
    """Mamba-2 alone: no attention, no feed-forward."""
    config = Mamba2Config(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        num_hidden_layers=3,
        num_heads=HEADS,
        head_dim=HEAD,
        n_groups=2,
        state_size=STATE,
        conv_kernel=3,
        layer_norm_epsilon=EPSILON,
        use_conv_bias=True,
        chunk_size=16,
        tie_word_embeddings=True,
    )
    model = Mamba2ForCausalLM(config).eval().float()
    randomize(model, rng, special)
    whole = {
        "backbone.embeddings.weight": "token_embd.weight",
        "backbone.norm_f.weight": "output_norm.weight",
    }
    tensors: dict[str, Floats] = {}
    for name, array in arrays(model).items():
        if name in whole:
            tensors[whole[name]] = array
            continue
        name = name.replace("backbone.", "model.")
        if ".mixer." in name:
            name, array = mamba_tensor(name.replace("mixer", "mamba"), array, groups=2)
        else:
            name = gguf_name(name, NAMES)
        tensors[name] = array
    keys = metadata(3, 2, 3) | {"attention.head_count": 0, "feed_forward_length": 0}
    return Made("mamba2", keys, tensors, run(model))


CASES: dict[str, Case] = {
    "mamba2": mamba2,
    "granitehybrid": granitehybrid,
    "granitehybrid-moe": granitehybrid_moe,
    "nemotron_h": nemotron_h,
    "nemotron_h_moe": nemotron_h_moe,
    "falcon-h1": falcon_h1,
    "falcon-h1-plain": falcon_h1_plain,
}
