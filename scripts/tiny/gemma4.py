"""Tiny Gemma 4 models: dense, with embeddings for every layer (E2B, E4B), and with experts.

llama.cpp differs from transformers by up to 0.01 here: on a CPU its GELU is a table of float16 numbers. With
that table in transformers as well they agree to 1e-4, but for numbers that lie between two entries.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from transformers import Gemma4ForCausalLM, Gemma4TextConfig

from tiny.base import CONTEXT, VOCABULARY, Case, Floats, Made, randomize, run
from tiny.names import convert, randomize_buffers

HIDDEN, DENSE, WINDOW = 32, 32, 9
HEADS, LOCAL_HEAD, GLOBAL_HEAD = 4, 8, 16
LOCAL, GLOBAL = "sliding_attention", "full_attention"
ROTATED = 0.375  # of a global head, as a share
EPS, CAP = 2.0**-9, 4.0
NAMES = {
    "model.embed_tokens_per_layer.weight": "per_layer_token_embd.weight",
    "model.per_layer_model_projection.weight": "per_layer_model_proj.weight",
    "model.per_layer_projection_norm.weight": "per_layer_proj_norm.weight",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
    "post_feedforward_layernorm_1": "post_ffw_norm_1",
    "post_feedforward_layernorm_2": "post_ffw_norm_2",
    "layer_scalar": "layer_output_scale.weight",
    "per_layer_input_gate": "inp_gate",
    "per_layer_projection": "proj",
    "post_per_layer_input_norm": "post_norm",
    "router.proj": "ffn_gate_inp",
    "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale",
    "experts.gate_up_proj": "ffn_gate_up_exps.weight",
    "experts.down_proj": "ffn_down_exps.weight",
}


def special(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> Floats | None:
    """Scales around one; embeddings that the model multiplies by the root of their size."""
    if name.endswith(("router.scale", "per_expert_scale")):
        # The router divides by the root of the size as well.
        return rng.uniform(0.5, 1.5, shape) * (HIDDEN**0.5 if name.endswith("router.scale") else 1)
    return None


def keep_together(name: str, array: Floats) -> dict[str, Floats] | None:
    """The converter leaves this family's gate and up matrices in one tensor."""
    return {"ffn_gate_up_exps.weight": array} if name == "experts.gate_up_proj" else None


def make(rng: np.random.Generator, layers: list[str], keys: dict[str, Any], **fields: Any) -> Made:
    """A model of `layers` with what its kind adds to configuration and metadata."""
    config = Gemma4TextConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=DENSE,
        num_hidden_layers=len(layers),
        layer_types=layers,
        num_attention_heads=HEADS,
        num_key_value_heads=2,
        head_dim=LOCAL_HEAD,
        global_head_dim=GLOBAL_HEAD,
        sliding_window=WINDOW,
        max_position_embeddings=CONTEXT,
        rms_norm_eps=EPS,
        final_logit_softcapping=CAP,
        tie_word_embeddings=True,
        vocab_size_per_layer_input=VOCABULARY,
        rope_parameters={
            LOCAL: {"rope_type": "default", "rope_theta": 300.0},
            GLOBAL: {"rope_type": "proportional", "partial_rotary_factor": ROTATED, "rope_theta": 5000.0},
        },
        pad_token_id=0,
        attn_implementation="eager",
        experts_implementation="eager",
        **fields,
    )
    model = Gemma4ForCausalLM(config).eval().float()
    randomize(model, rng, special)
    randomize_buffers(model, rng)
    tensors = convert(model, NAMES, keep_together)
    # Numbers of a global head that are not rotated have a frequency divided by “infinity”.
    rotated = int(GLOBAL_HEAD * ROTATED / 2)
    factors = [1.0] * rotated + [1e30] * (GLOBAL_HEAD // 2 - rotated)
    tensors["rope_freqs.weight"] = np.array(factors, np.float32)
    meta = {
        "context_length": CONTEXT,
        "embedding_length": HIDDEN,
        "block_count": len(layers),
        "feed_forward_length": DENSE,
        "attention.head_count": HEADS,
        "attention.head_count_kv": 2,
        "attention.key_length": GLOBAL_HEAD,
        "attention.value_length": GLOBAL_HEAD,
        "attention.key_length_swa": LOCAL_HEAD,
        "attention.value_length_swa": LOCAL_HEAD,
        "attention.layer_norm_rms_epsilon": EPS,
        "attention.sliding_window": WINDOW,
        "attention.sliding_window_pattern": [kind == LOCAL for kind in layers],
        "attention.shared_kv_layers": 0,
        "embedding_length_per_layer_input": 0,
        "rope.dimension_count": GLOBAL_HEAD,
        "rope.dimension_count_swa": LOCAL_HEAD,
        "rope.freq_base": 5000.0,
        "rope.freq_base_swa": 300.0,
        "final_logit_softcapping": CAP,
    }
    return Made("gemma4", meta | keys, tensors, run(model))


def gemma4(rng: np.random.Generator) -> Made:
    """The dense model: global layers with fewer K/V heads and without a matrix for values."""
    layers = [LOCAL, LOCAL, GLOBAL, LOCAL, GLOBAL]
    keys = {"attention.head_count_kv": [2 if kind == LOCAL else 1 for kind in layers]}
    return make(
        rng,
        layers,
        keys,
        hidden_size_per_layer_input=0,
        attention_k_eq_v=True,
        num_global_key_value_heads=1,
    )


def gemma4_e(rng: np.random.Generator) -> Made:
    """E2B and E4B: embeddings for every layer; the last layers share K and V, and are twice as wide.

    A layer that shares takes those of the last layer of its kind that has them. llama.cpp takes the last for
    global layers and the one before it for windowed layers, which is the same in the real models, and here.
    """
    layers = [LOCAL, LOCAL, GLOBAL, LOCAL, GLOBAL]
    keys = {
        "attention.shared_kv_layers": 2,
        "embedding_length_per_layer_input": 32,
        "feed_forward_length": [DENSE] * 3 + [2 * DENSE] * 2,
    }
    made = make(
        rng,
        layers,
        keys,
        hidden_size_per_layer_input=32,
        num_kv_shared_layers=2,
        use_double_wide_mlp=True,
    )
    # As in the real files, layers that share have such tensors all the same; nothing reads them.
    unused, other = {}, np.random.default_rng(0)
    for i, size in ((3, LOCAL_HEAD), (4, GLOBAL_HEAD)):
        for name in ("attn_k", "attn_v"):
            unused[f"blk.{i}.{name}.weight"] = other.normal(0, 1, (2 * size, HIDDEN)).astype(np.float32)
        unused[f"blk.{i}.attn_k_norm.weight"] = other.uniform(0.5, 1.5, size).astype(np.float32)
    return replace(made, tensors=made.tensors | unused)


def gemma4_moe(rng: np.random.Generator) -> Made:
    """The model with experts beside its dense feed-forward, each between norms of its own."""
    layers = [LOCAL, GLOBAL]
    keys = {
        "attention.head_count_kv": [2, 1],
        "expert_count": 6,
        "expert_used_count": 3,
        "expert_feed_forward_length": 32,
    }
    return make(
        rng,
        layers,
        keys,
        hidden_size_per_layer_input=0,
        attention_k_eq_v=True,
        num_global_key_value_heads=1,
        enable_moe_block=True,
        num_experts=6,
        top_k_experts=3,
        moe_intermediate_size=32,
    )


CASES: dict[str, Case] = {"gemma4": gemma4, "gemma4-e": gemma4_e, "gemma4-moe": gemma4_moe}
