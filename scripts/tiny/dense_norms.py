"""Tiny models with norms after attention and feed-forward, windows and caps."""

from __future__ import annotations

from math import log

import numpy as np
from transformers import (
    Exaone4Config,
    Exaone4ForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GemmaConfig,
    GemmaForCausalLM,
    Glm4Config,
    Glm4ForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    Olmo3Config,
    Olmo3ForCausalLM,
)

from tiny.base import Case, Floats, Made
from tiny.dense_files import AFTER, AROUND, PLAIN_ROPE, head_keys, keys, sizes, write


def gemma(rng: np.random.Generator) -> Made:
    """Gemma: scaled embeddings, GELU, one K/V head. The file has the norms with the one added.

    llama.cpp and its files always have a rope of base 10000.
    """
    rope = {"rope_type": "default", "rope_theta": 10_000.0}
    config = GemmaConfig(
        **sizes(head_dim=16, num_key_value_heads=1, tie_word_embeddings=True, rope_parameters=rope)
    )
    metadata = keys(config, attention__key_length=16, attention__value_length=16)
    del metadata["rope.freq_base"]
    return write("gemma", GemmaForCausalLM(config), rng, metadata, add_to_norms=1.0)


def gemma2(rng: np.random.Generator) -> Made:
    """Gemma 2: caps on scores and logits, a window in every other layer, norms on both sides."""
    rope = {"rope_type": "default", "rope_theta": 10_000.0}
    config = Gemma2Config(
        **sizes(
            head_dim=16,
            tie_word_embeddings=True,
            rope_parameters=rope,
            sliding_window=5,
            query_pre_attn_scalar=16,
            attn_logit_softcapping=1.5,
            final_logit_softcapping=2.0,
        )
    )
    metadata = keys(
        config,
        attention__key_length=16,
        attention__value_length=16,
        attention__sliding_window=5,
        attn_logit_softcapping=1.5,
        final_logit_softcapping=2.0,
    )
    del metadata["rope.freq_base"]
    return write("gemma2", Gemma2ForCausalLM(config), rng, metadata, names=AROUND, add_to_norms=1.0)


def olmo2(rng: np.random.Generator) -> Made:
    """OLMo 2: norms after attention and feed-forward only, q and k normalised as a whole."""
    config = Olmo2Config(**sizes(hidden_size=48, num_attention_heads=6))
    return write("olmo2", Olmo2ForCausalLM(config), rng, keys(config), names=AFTER)


def olmo3(rng: np.random.Generator) -> Made:
    """OLMo 3: an OLMo 2 with windows in three of four layers; YaRN in the others only.

    Its attention factor is the usual one, as in the real models: llama.cpp takes no other.
    """
    magnitude = 0.1 * log(4.0) + 1.0
    yarn = {
        "rope_type": "yarn",
        "rope_theta": 5000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 16,
        "attention_factor": magnitude,
        "beta_fast": 4.0,
        "beta_slow": 0.5,
    }
    config = Olmo3Config(
        **sizes(
            num_hidden_layers=5,
            sliding_window=6,
            rope_parameters={"full_attention": yarn, "sliding_attention": dict(PLAIN_ROPE)},
        )
    )
    metadata = keys(
        config,
        rope__freq_base=5000.0,
        attention__sliding_window=6,
        attention__sliding_window_pattern=[True, True, True, False, True],
        rope__scaling__type="yarn",
        rope__scaling__factor=4.0,
        rope__scaling__original_context_length=16,
        rope__scaling__yarn_attn_factor=magnitude,
        rope__scaling__yarn_beta_fast=4.0,
        rope__scaling__yarn_beta_slow=0.5,
    )
    return write("olmo2", Olmo3ForCausalLM(config), rng, metadata, names=AFTER)


def glm4(rng: np.random.Generator) -> Made:
    """GLM-4: adjacent pairs in half of a head, norms on both sides, gate and up in one matrix."""
    config = Glm4Config(
        **sizes(
            head_dim=16,
            num_attention_heads=6,
            attention_bias=True,
            rope_parameters=PLAIN_ROPE | {"partial_rotary_factor": 0.5},
        )
    )
    metadata = keys(config, **head_keys(16))
    metadata["rope.dimension_count"] = 8
    names = {
        "post_self_attn_layernorm": "post_attention_norm",
        "post_mlp_layernorm": "post_ffw_norm",
        "mlp.gate_up_proj": "ffn_up",
    }
    return write("glm4", Glm4ForCausalLM(config), rng, metadata, names=names)


def exaone4(rng: np.random.Generator, n_layer: int = 64) -> Made:
    """EXAONE 4 32B: windows and a rope in three of four layers, the others have neither.

    llama.cpp knows the 32B, and so the windows, by its 64 layers.
    """
    config = Exaone4Config(
        **sizes(
            num_hidden_layers=n_layer,
            hidden_size=8,
            intermediate_size=8,
            num_attention_heads=2,
            num_key_value_heads=1,
            sliding_window=6,
            sliding_window_pattern=4,
        )
    )
    metadata = keys(
        config,
        **head_keys(4),
        attention__sliding_window=6,
        attention__sliding_window_pattern=[i % 4 < 3 for i in range(n_layer)],
    )

    def special(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> Floats | None:
        # Small steps: 64 layers multiply the differences of rounding otherwise.
        return rng.uniform(0.05, 0.2, shape) if ".post_" in name else None

    return write("exaone4", Exaone4ForCausalLM(config), rng, metadata, names=AFTER, special=special)


def exaone4_small(rng: np.random.Generator) -> Made:
    """EXAONE 4 1.2B: no windows, so a rope in every layer, with Llama 3's scaling."""
    rope = {
        "rope_type": "llama3",
        "rope_theta": 5000.0,
        "factor": 4.0,
        "low_freq_factor": 0.25,
        "high_freq_factor": 2.0,
        "original_max_position_embeddings": 32,
    }
    config = Exaone4Config(
        **sizes(
            hidden_size=48,
            num_attention_heads=3,
            num_key_value_heads=1,
            sliding_window=None,
            layer_types=["full_attention"] * 3,
            tie_word_embeddings=True,
            rope_parameters=rope,
        )
    )
    model = Exaone4ForCausalLM(config)
    made = write("exaone4", model, rng, keys(config, **head_keys(16)), names=AFTER)
    plain = 5000.0 ** (-np.arange(0, 16, 2) / 16)
    made.tensors["rope_freqs.weight"] = (plain / model.model.rotary_emb.inv_freq.numpy()).astype(np.float32)
    return made


CASES: dict[str, Case] = {
    "gemma": gemma,
    "gemma2": gemma2,
    "olmo2": olmo2,
    "olmo2-olmo3": olmo3,
    "glm4": glm4,
    "exaone4": exaone4,
    "exaone4-llama3": exaone4_small,
}
