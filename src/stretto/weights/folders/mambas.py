"""Folders of models with Mamba layers: Mamba, Jamba, Granite 4, Nemotron-H, Falcon-H1."""

from __future__ import annotations

import numpy as np

from stretto.weights.folders.conversion import (
    COLUMN,
    MODULES,
    NEGATIVE_EXP,
    Conversion,
    adjacent,
    shaped,
    times,
    without_axis,
)
from stretto.weights.folders.decoder import ATTENTION, BEFORE, common_keys, rope_keys, take_whole
from stretto.weights.folders.experts import SIGMOID, expert_keys, take_experts, take_granite
from stretto.weights.folders.llama import multipliers
from stretto.weights.json_file import Fields
from stretto.weights.tensor import Op

GRANITE = {**ATTENTION, **BEFORE, "block_sparse_moe.router.layer": "ffn_gate_inp"}
NEMOTRON = MODULES["nemotron"]
FALCON = {**ATTENTION, **MODULES["falcon"]}
JAMBA = {"pre_ff_layernorm": "ffn_norm", "feed_forward.router": "ffn_gate_inp"}
ENDLESS = 1 << 20  # tokens of context, of models that have no limit; as llama.cpp's converter writes it
LINEAR = ("linear_attention", "mamba")


def take_mamba(
    conversion: Conversion, place: str, block: str, groups: int, ops: dict[str, Op] | None = None
) -> None:
    """Take a Mamba-2 layer: A and D as columns, the norm group by group. `ops` come first."""
    ops = ops or {}
    conversion.take(f"{block}.ssm_a", f"{place}.A_log", op=NEGATIVE_EXP.then(COLUMN))
    conversion.take(f"{block}.ssm_d", f"{place}.D", op=COLUMN)
    conversion.take(f"{block}.ssm_dt.bias", f"{place}.dt_bias")
    conversion.take(f"{block}.ssm_conv1d.weight", f"{place}.conv1d.weight", op=without_axis(1))
    if conversion.has(f"{place}.conv1d.bias"):
        conversion.take(f"{block}.ssm_conv1d.bias", f"{place}.conv1d.bias")
    if conversion.has(f"{place}.norm.weight"):
        conversion.take(f"{block}.ssm_norm.weight", f"{place}.norm.weight", op=shaped(groups, -1))
    for part, target in (("in_proj", "ssm_in"), ("out_proj", "ssm_out")):
        conversion.take_module(f"{block}.{target}", f"{place}.{part}", ops.get(target))


def granite(conversion: Conversion) -> None:
    """Granite 4: perhaps without experts, perhaps without a rope."""
    config, keys = conversion.config, conversion.keys
    size = common_keys(conversion)
    rope_keys(conversion, size)
    multipliers(conversion)
    kinds = config.list("layer_types", config.list("layers_block_type", []))
    heads, groups = keys["attention.head_count_kv"], config.integer("mamba_n_groups", 1, least=1)
    keys["attention.head_count_kv"] = [0 if kind in LINEAR else heads for kind in kinds]
    inner = config.integer("mamba_n_heads", least=1) * config.integer("mamba_d_head", least=1)
    _mamba_keys(conversion, "mamba_d_conv", "mamba_d_state", groups, inner, "mamba_n_heads")
    keys["rope.scaling.finetuned"] = (
        config.get("position_embedding_type") == "rope"
    )  # whether there is a rope
    experts = config.integer("num_local_experts", 0)
    shared = config.integer("shared_intermediate_size", 0)
    if experts:
        expert_keys(conversion)
        keys["expert_shared_feed_forward_length"] = shared
    else:
        keys["feed_forward_length"] = shared
    take_whole(conversion)
    conversion.take_layers(GRANITE, {"attn_q": adjacent(size), "attn_k": adjacent(size)})
    take_granite(conversion, "_shexp" if experts else "")
    for i, kind in enumerate(kinds[: conversion.n_layer]):
        if kind in LINEAR:
            take_mamba(conversion, f"layers.{i}.mamba", f"blk.{i}", groups)


def nemotron(conversion: Conversion) -> None:
    """Nemotron-H: a layer is Mamba-2, attention without rope, an MLP with relu², or experts."""
    config, keys = conversion.config, conversion.keys
    kinds = _nemotron_kinds(conversion)
    common_keys(conversion)
    keys["attention.layer_norm_epsilon"] = config.number("layer_norm_epsilon", 1e-5)
    keys["attention.layer_norm_rms_epsilon"] = keys["attention.layer_norm_epsilon"]
    heads, groups = keys["attention.head_count_kv"], config.integer("n_groups", 8, least=1)
    inner = config.integer("mamba_num_heads", least=1) * config.integer("mamba_head_dim", least=1)
    _mamba_keys(conversion, "conv_kernel", "ssm_state_size", groups, inner, "mamba_num_heads")
    has_experts = "moe" in kinds
    width = config.integer("moe_intermediate_size" if has_experts else "intermediate_size", least=1)
    keys |= {
        "feed_forward_length": [width if kind in ("mlp", "moe") else 0 for kind in kinds],
        "attention.head_count_kv": [heads if kind == "full_attention" else 0 for kind in kinds],
        "rope.scaling.finetuned": False,
    }
    take_whole(conversion, {"embeddings": "token_embd", "norm_f": "output_norm", "lm_head": "output"})
    conversion.take_layers(NEMOTRON)
    for i, kind in enumerate(kinds):
        if kind == "linear_attention":
            take_mamba(conversion, f"layers.{i}.mixer", f"blk.{i}", groups)
    if has_experts:
        _nemotron_experts(conversion)


def _nemotron_experts(conversion: Conversion) -> None:
    config, keys = conversion.config, conversion.keys
    conversion.arch = "nemotron_h_moe"
    expert_keys(conversion)
    keys |= {
        "expert_shared_count": config.integer("n_shared_experts", 1),
        "expert_shared_feed_forward_length": config.integer("moe_shared_expert_intermediate_size", least=1),
        "expert_weights_norm": config.flag("norm_topk_prob", True),
        "expert_weights_scale": config.number("routed_scaling_factor", 1.0),
        "expert_group_count": config.integer("n_group", 1, least=1),
        "expert_gating_func": SIGMOID,
    }
    take_experts(conversion, "mixer.experts")
    for i in range(conversion.n_layer):
        source = f"layers.{i}.mixer.gate.e_score_correction_bias"
        if conversion.has(source):
            conversion.take(f"blk.{i}.exp_probs_b.bias", source)


def _nemotron_kinds(conversion: Conversion) -> list[str]:
    """The kind of each layer; older configurations have a letter for each."""
    config = conversion.config
    kinds = config.list("layers_block_type", [])
    if not kinds:
        letters = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
        kinds = [letters.get(letter, letter) for letter in config.text("hybrid_override_pattern")]
    named = {"mamba": "linear_attention", "attention": "full_attention"}
    kinds = [named.get(kind, kind) if isinstance(kind, str) else "" for kind in kinds]
    if not kinds or not {"linear_attention", "full_attention", "mlp", "moe"} >= set(kinds):
        raise config.error("layers_block_type", "must name the kind of each layer")
    conversion.config = Fields({**dict(config), "num_hidden_layers": len(kinds)}, config.path, config.prefix)
    return kinds


def mamba2(conversion: Conversion) -> None:
    """Mamba-2 alone."""
    config, keys = conversion.config, conversion.keys
    conversion.refuse("use_bias", "biases of projections")
    hidden, groups = (config.integer(name, least=1) for name in ("hidden_size", "n_groups"))
    keys |= {
        "context_length": config.integer("max_position_embeddings", ENDLESS, least=1),
        "embedding_length": hidden,
        "block_count": conversion.n_layer,
        "attention.head_count": 0,
        "feed_forward_length": 0,
        "attention.layer_norm_rms_epsilon": config.number("layer_norm_epsilon", 1e-5),
    }
    inner = hidden * config.integer("expand", 2, least=1)
    _mamba_keys(conversion, "conv_kernel", "state_size", groups, inner, "num_heads")
    take_whole(conversion, {"embeddings": "token_embd", "norm_f": "output_norm", "lm_head": "output"})
    conversion.take_layers({"norm": "attn_norm"})
    for i in range(conversion.n_layer):
        take_mamba(conversion, f"layers.{i}.mixer", f"blk.{i}", groups)


def mamba(conversion: Conversion) -> None:
    """Mamba's first version alone, and Falcon Mamba, which normalises steps, B and C."""
    config, keys = conversion.config, conversion.keys
    conversion.refuse("use_bias", "biases of projections")
    hidden = config.integer("hidden_size", least=1)
    keys |= {
        "context_length": config.integer("max_position_embeddings", ENDLESS, least=1),
        "embedding_length": hidden,
        "block_count": conversion.n_layer,
        "attention.head_count": 0,
        "feed_forward_length": 0,
        "attention.layer_norm_rms_epsilon": config.number("layer_norm_epsilon", 1e-5),
    }
    if config.text("model_type") == "falcon_mamba":
        keys |= {"ssm.dt_b_c_rms": True, "ssm.norm_epsilon": config.number("mixer_rms_eps", 1e-6)}
    inner = config.integer("intermediate_size", 2 * hidden, least=1)
    rank = config.get("time_step_rank", "auto")
    conversion.config = Fields(
        {**dict(config), "time_step_rank": -(-hidden // 16) if rank == "auto" else rank}, config.path
    )
    _mamba_keys(conversion, "conv_kernel", "state_size", 0, inner, "time_step_rank")
    take_whole(conversion, {"embeddings": "token_embd", "norm_f": "output_norm", "lm_head": "output"})
    conversion.take_layers({"norm": "attn_norm"})
    for i in range(conversion.n_layer):
        take_first_mamba(conversion, f"layers.{i}.mixer", f"blk.{i}")


def take_first_mamba(conversion: Conversion, place: str, block: str) -> None:
    """Take a layer of Mamba's first version."""
    conversion.take(f"{block}.ssm_a", f"{place}.A_log", op=NEGATIVE_EXP)
    conversion.take(f"{block}.ssm_d", f"{place}.D")
    conversion.take(f"{block}.ssm_conv1d.weight", f"{place}.conv1d.weight", op=without_axis(1))
    if conversion.has(f"{place}.conv1d.bias"):
        conversion.take(f"{block}.ssm_conv1d.bias", f"{place}.conv1d.bias")
    names = {"in_proj": "ssm_in", "x_proj": "ssm_x", "dt_proj": "ssm_dt", "out_proj": "ssm_out"}
    names |= {f"{part}_layernorm": f"ssm_{part}_norm" for part in ("dt", "b", "c")}
    for part, target in names.items():
        conversion.take_module(f"{block}.{target}", f"{place}.{part}")


def jamba(conversion: Conversion) -> None:
    """Jamba: Mamba beside layers that attend, experts in some layers."""
    config, keys, n = conversion.config, conversion.keys, conversion.n_layer
    conversion.refuse("mamba_proj_bias", "biases of projections")
    common_keys(conversion)
    kinds = config.list("layer_types", config.list("layers_block_type", []))
    first, period = (
        config.integer(f"attn_layer_{name}", usual) for name, usual in (("offset", 4), ("period", 8))
    )
    kinds = kinds or ["attention" if i % period == first else "mamba" for i in range(n)]
    heads = keys["attention.head_count_kv"]
    keys["attention.head_count_kv"] = [0 if kind in LINEAR else heads for kind in kinds]
    hidden = keys["embedding_length"]
    rank = config.get("mamba_dt_rank", "auto")
    settings = {**dict(config), "mamba_dt_rank": -(-hidden // 16) if rank == "auto" else rank}
    conversion.config = Fields(settings, config.path)
    inner = hidden * config.integer("mamba_expand", 2, least=1)
    _mamba_keys(conversion, "mamba_d_conv", "mamba_d_state", 0, inner, "mamba_dt_rank")
    expert_keys(conversion)
    take_whole(
        conversion, {"embed_tokens": "token_embd", "final_layernorm": "output_norm", "lm_head": "output"}
    )
    conversion.take_layers({**ATTENTION, **FALCON, **JAMBA})
    for i, kind in enumerate(kinds[:n]):
        if kind in LINEAR:
            take_first_mamba(conversion, f"layers.{i}.mamba", f"blk.{i}")
    take_experts(conversion, "feed_forward.experts")


def falcon(conversion: Conversion) -> None:
    """Falcon-H1: attention and Mamba-2 side by side; files have the multipliers in their weights."""
    config, keys = conversion.config, conversion.keys
    size = common_keys(conversion)
    rope_keys(conversion, size)
    if config.get("mamba_norm_before_gate") is True and config.get("mamba_rms_norm") is True:
        raise config.error("mamba_norm_before_gate", "only a norm after the gate is supported")
    heads, groups = config.integer("mamba_n_heads", least=1), config.integer("mamba_n_groups", least=1)
    inner = config.integer("mamba_d_ssm", heads * config.integer("mamba_d_head", least=1), least=1)
    _mamba_keys(conversion, "mamba_d_conv", "mamba_d_state", groups, inner, "mamba_n_heads")
    ops = _falcon_ops(conversion, inner, groups * keys["ssm.state_size"], heads)
    names = {"embed_tokens": "token_embd", "final_layernorm": "output_norm", "lm_head": "output"}
    take_whole(conversion, names, ops)
    conversion.take_layers(FALCON, ops)
    for i in range(conversion.n_layer):
        conversion.take(f"blk.{i}.ffn_norm", f"layers.{i}.pre_ff_layernorm.weight")  # so it is in files
        take_mamba(conversion, f"layers.{i}.mamba", f"blk.{i}", groups, ops)


def _falcon_ops(conversion: Conversion, inner: int, group: int, heads: int) -> dict[str, Op]:
    config = conversion.config

    def factors(name: str, count: int) -> list[float]:
        values = config.list(name, [1.0] * count)
        if len(values) != count or not all(isinstance(one, (int, float)) for one in values):
            raise config.error(name, f"must be {count} numbers")
        return values

    parts = np.repeat(factors("ssm_multipliers", 5), [inner, inner, group, group, heads])
    enter, leave = (
        config.number("attention_in_multiplier", 1.0),
        config.number("attention_out_multiplier", 1.0),
    )
    gate, down = factors("mlp_multipliers", 2)
    return {
        "token_embd": times(config.number("embedding_multiplier", 1.0)),
        "output": times(config.number("lm_head_multiplier", 1.0)),
        "ffn_gate": times(gate),
        "ffn_down": times(down),
        "attn_q": times(enter),
        "attn_k": times(enter * config.number("key_multiplier", 1.0)),
        "attn_v": times(enter),
        "attn_output": times(leave),
        "ssm_in": times(parts * config.number("ssm_in_multiplier", 1.0)),
        "ssm_out": times(config.number("ssm_out_multiplier", 1.0)),
    }


def _mamba_keys(conversion: Conversion, kernel: str, state: str, groups: int, inner: int, heads: str) -> None:
    config = conversion.config
    conversion.keys |= {
        "ssm.conv_kernel": config.integer(kernel, least=2),
        "ssm.state_size": config.integer(state, least=1),
        "ssm.inner_size": inner,
        "ssm.time_step_rank": config.integer(heads, least=1),
    }
    if groups:
        conversion.keys["ssm.group_count"] = groups
