"""Tiny models with gated delta nets: Qwen3.5, Qwen3.5-MoE, Qwen3-Next."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from transformers import (
    Qwen3_5ForCausalLM,
    Qwen3_5MoeForCausalLM,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)

from tiny.base import CONTEXT, VOCABULARY, Case, Floats, Made, arrays, randomize, run
from tiny.dense_files import gguf_name

HIDDEN, FEED_FORWARD, EXPERT, SHARED = 32, 36, 16, 12
HEAD, ROTATED = 16, 8  # sizes of an attention head and of the part that is rotated
KEY_HEADS, VALUE_HEADS, STATE = 2, 6, 8  # of a delta net: three value heads to each key head
EPSILON = 2.0**-20  # transformers divides q and k of a delta net by √(x² + 1e-6), llama.cpp with this ε

NAMES = {
    "self_attn.q_proj": "attn_q",  # each head: its query, then its gate
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm",
    "linear_attn.in_proj_qkv": "attn_qkv",
    "linear_attn.in_proj_z": "attn_gate",
    "linear_attn.in_proj_b": "ssm_beta",
    "linear_attn.in_proj_a": "ssm_alpha",
    "linear_attn.in_proj_ba": "ssm_ba",
    "linear_attn.conv1d": "ssm_conv1d",
    "linear_attn.norm": "ssm_norm",
    "linear_attn.out_proj": "ssm_out",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
}

COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": HEAD,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": EPSILON,
    "linear_key_head_dim": STATE,
    "linear_value_head_dim": STATE,
    "linear_num_key_heads": KEY_HEADS,
    "linear_num_value_heads": VALUE_HEADS,
    "attn_implementation": "eager",
}
ROPE = {"rope_type": "default", "rope_theta": 3000.0, "partial_rotary_factor": ROTATED / HEAD}
EXPERTS = {
    "moe_intermediate_size": EXPERT,
    "shared_expert_intermediate_size": SHARED,
    "num_experts": 4,
    "num_experts_per_tok": 2,
}


def special(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> Floats | None:
    """Decays for which a state lasts some ten tokens, and kernels that keep q and k well above both ε."""
    if name.endswith("A_log"):
        return rng.normal(-2.5, 1.0, shape)
    return rng.normal(0, 2.0, shape) if "conv1d" in name else None


def by_value_head(array: Floats, axis: int = 0) -> Floats:
    """Value heads as Qwen3.5's files have them: value head i belongs to key head i mod n, not i div r."""
    heads = array.reshape(
        *array.shape[:axis], KEY_HEADS, VALUE_HEADS // KEY_HEADS, -1, *array.shape[axis + 1 :]
    )
    return np.ascontiguousarray(heads.swapaxes(axis, axis + 1)).reshape(array.shape)


def reorder(name: str, array: Floats) -> Floats:
    """A tensor of Qwen3.5's delta net with its value heads in the order of the file."""
    keys = 2 * KEY_HEADS * STATE
    if "linear_attn" not in name or "linear_attn.norm" in name:
        return array
    if "in_proj_qkv" in name or "conv1d" in name:
        return np.concatenate([array[:keys], by_value_head(array[keys:])])
    return by_value_head(array, 1 if "out_proj" in name else 0)


def split(name: str, array: Floats) -> dict[str, Floats]:
    """Qwen3-Next's one projection, which goes key head by key head, as the file's two."""
    values = VALUE_HEADS // KEY_HEADS * STATE
    heads = array.reshape(KEY_HEADS, -1, HIDDEN)
    parts = np.split(heads, np.cumsum([STATE, STATE, values]), axis=1)
    q, k, v, z = (np.ascontiguousarray(part).reshape(-1, HIDDEN) for part in parts)
    layer = name.split(".")[2]
    return {f"blk.{layer}.attn_qkv.weight": np.concatenate([q, k, v]), f"blk.{layer}.attn_gate.weight": z}


def tensors_of(model: torch.nn.Module, tiled: bool) -> dict[str, Floats]:
    """The file's tensors."""
    found: dict[str, Floats] = {}
    for name, array in arrays(model).items():
        layer = name.removeprefix("model.layers.").split(".")[0]
        if tiled:
            array = reorder(name, array)
        if name.endswith("norm.weight") and "linear_attn" not in name:
            array = array + 1  # the model adds one itself
        if "conv1d" in name:
            array = array[:, 0]
        if "in_proj_qkvz" in name:
            found |= split(name, array)
        elif name.endswith("A_log"):
            found[f"blk.{layer}.ssm_a"] = -np.exp(array)
        elif name.endswith("dt_bias"):
            found[f"blk.{layer}.ssm_dt.bias"] = array
        elif name.endswith("experts.gate_up_proj"):
            found[f"blk.{layer}.ffn_gate_exps.weight"] = np.ascontiguousarray(array[:, :EXPERT])
            found[f"blk.{layer}.ffn_up_exps.weight"] = np.ascontiguousarray(array[:, EXPERT:])
        elif name.endswith("experts.down_proj"):
            found[f"blk.{layer}.ffn_down_exps.weight"] = array
        else:
            found[gguf_name(name, NAMES)] = array
    return found


def metadata(layers: int, kernel: int) -> dict[str, Any]:
    """The keys that all three have."""
    return {
        "context_length": CONTEXT,
        "embedding_length": HIDDEN,
        "block_count": layers,
        "feed_forward_length": FEED_FORWARD,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.key_length": HEAD,
        "attention.value_length": HEAD,
        "attention.layer_norm_rms_epsilon": EPSILON,
        "rope.dimension_count": ROTATED,
        "rope.freq_base": ROPE["rope_theta"],
        "ssm.conv_kernel": kernel,
        "ssm.state_size": STATE,
        "ssm.group_count": KEY_HEADS,
        "ssm.time_step_rank": VALUE_HEADS,
        "ssm.inner_size": VALUE_HEADS * STATE,
    }


EXPERT_KEYS = {
    "expert_count": 4,
    "expert_used_count": 2,
    "expert_feed_forward_length": EXPERT,
    "expert_shared_feed_forward_length": SHARED,
}


def centred_at_zero(name: str) -> bool:
    """Whether a norm's weight is added to one by the model."""
    return "linear_attn" not in name


def next_token_block(tensors: dict[str, Floats], layer: int, rng: np.random.Generator) -> dict[str, Floats]:
    """A block that predicts one token further (MTP), as files have it after the layers; it is not run."""
    block = {}
    for name, array in tensors.items():
        if name.startswith("blk.2."):  # an attention layer, whose shapes it has
            block[name.replace("blk.2.", f"blk.{layer}.")] = rng.normal(0, 1, array.shape).astype(np.float32)
    extra = {
        "eh_proj": (HIDDEN, 2 * HIDDEN),
        "enorm": (HIDDEN,),
        "hnorm": (HIDDEN,),
        "shared_head_norm": (HIDDEN,),
    }
    for name, shape in extra.items():
        block[f"blk.{layer}.nextn.{name}.weight"] = rng.normal(0, 1, shape).astype(np.float32)
    return block


def qwen35(rng: np.random.Generator) -> Made:
    """Qwen3.5: every third layer attends, with a gate, the others are delta nets; tied; an MTP block."""
    config = Qwen3_5TextConfig(
        **COMMON,
        intermediate_size=FEED_FORWARD,
        tie_word_embeddings=True,
        linear_conv_kernel_dim=4,
        full_attention_interval=3,
        rope_parameters=ROPE | {"mrope_section": [2, 1, 1]},
    )
    model = Qwen3_5ForCausalLM(config).eval().float()
    randomize(model, rng, special, centred_at_zero)
    tensors = tensors_of(model, tiled=True)
    tensors |= next_token_block(tensors, 4, rng)
    keys = metadata(5, 4) | {"full_attention_interval": 3, "rope.dimension_sections": [2, 1, 1, 0]}
    return Made("qwen35", keys | {"nextn_predict_layers": 1}, tensors, run(model))


def qwen35moe(rng: np.random.Generator) -> Made:
    """Qwen3.5 with experts: untied, and a short kernel."""
    config = Qwen3_5MoeTextConfig(
        **COMMON,
        **EXPERTS,
        tie_word_embeddings=False,
        linear_conv_kernel_dim=3,
        full_attention_interval=3,
        rope_parameters=ROPE | {"mrope_section": [2, 1, 1]},
    )
    model = Qwen3_5MoeForCausalLM(config).eval().float()
    randomize(model, rng, special, centred_at_zero)
    keys = metadata(4, 3) | {"full_attention_interval": 3, "rope.dimension_sections": [2, 1, 1, 0]}
    return Made("qwen35moe", keys | EXPERT_KEYS, tensors_of(model, tiled=True), run(model))


def qwen3next(rng: np.random.Generator) -> Made:
    """Qwen3-Next: value heads follow their key head, beta and alpha are one projection."""
    config = Qwen3NextConfig(
        **COMMON,
        **EXPERTS,
        tie_word_embeddings=False,
        linear_conv_kernel_dim=4,
        norm_topk_prob=True,
        full_attention_interval=2,
        rope_parameters=ROPE,
    )
    model = Qwen3NextForCausalLM(config).eval().float()
    randomize(model, rng, special, centred_at_zero)
    tensors = tensors_of(model, tiled=False)
    for name in tensors:
        if "ffn_gate_inp_shexp" in name:
            tensors[name] = tensors[name][0]  # files have it with one dimension or two
    return Made(
        "qwen3next", metadata(4, 4) | EXPERT_KEYS | {"full_attention_interval": 2}, tensors, run(model)
    )


CASES: dict[str, Case] = {"qwen35": qwen35, "qwen35moe": qwen35moe, "qwen3next": qwen3next}
