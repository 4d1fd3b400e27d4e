"""Tiny models that are a llama with one or two things changed."""

from __future__ import annotations

import numpy as np
from transformers import (
    Ernie4_5Config,
    Ernie4_5ForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    HunYuanDenseV1Config,
    HunYuanDenseV1ForCausalLM,
    Ministral3Config,
    Ministral3ForCausalLM,
    SeedOssConfig,
    SeedOssForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)

from tiny.base import Case, Made
from tiny.dense_files import HIDDEN, head_keys, keys, sizes, write


def smollm3(rng: np.random.Generator) -> Made:
    """SmolLM3: every fourth layer has no rope."""
    config = SmolLM3Config(
        **sizes(
            num_hidden_layers=5,
            intermediate_size=48,
            tie_word_embeddings=True,
            no_rope_layer_interval=4,
            use_sliding_window=False,
        )
    )
    metadata = keys(config, rope__dimension_count=HIDDEN // 4)
    return write("smollm3", SmolLM3ForCausalLM(config), rng, metadata, adjacent_size=HIDDEN // 4)


def granite(rng: np.random.Generator) -> Made:
    """Granite 3: four multipliers."""
    config = GraniteConfig(
        **sizes(
            num_attention_heads=6,
            hidden_size=48,
            tie_word_embeddings=True,
            embedding_multiplier=7.0,
            residual_multiplier=0.625,
            attention_multiplier=0.2,
            logits_scaling=1.25,
        )
    )
    metadata = keys(
        config,
        rope__dimension_count=8,
        attention__scale=0.2,
        embedding_scale=7.0,
        residual_scale=0.625,
        logit_scale=1.25,
    )
    return write("granite", GraniteForCausalLM(config), rng, metadata, adjacent_size=8)


def minicpm(rng: np.random.Generator) -> Made:
    """MiniCPM: three of Granite's multipliers; transformers has no class of its own for it."""
    config = GraniteConfig(
        **sizes(
            num_attention_heads=6,
            hidden_size=48,
            tie_word_embeddings=True,
            embedding_multiplier=4.0,
            residual_multiplier=0.75,
            attention_multiplier=8**-0.5,
            logits_scaling=1.5,
        )
    )
    metadata = keys(
        config, rope__dimension_count=8, embedding_scale=4.0, residual_scale=0.75, logit_scale=1.5
    )
    return write("minicpm", GraniteForCausalLM(config), rng, metadata, adjacent_size=8)


def ministral3(rng: np.random.Generator) -> Made:
    """Ministral 3: YaRN without its magnitude, queries scaled by the logarithm of their position."""
    yarn = {
        "rope_type": "yarn",
        "rope_theta": 5000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 12,
        "beta_fast": 4.0,
        "beta_slow": 0.5,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.3,
    }
    config = Ministral3Config(**sizes(head_dim=16, rope_parameters=yarn))
    metadata = keys(
        config,
        **head_keys(16),
        attention__temperature_scale=0.3,
        rope__scaling__type="yarn",
        rope__scaling__factor=4.0,
        rope__scaling__original_context_length=12,
        rope__scaling__yarn_beta_fast=4.0,
        rope__scaling__yarn_beta_slow=0.5,
        rope__scaling__yarn_log_multiplier=1.0,
    )
    return write("mistral3", Ministral3ForCausalLM(config), rng, metadata, adjacent_size=16)


def ernie(rng: np.random.Generator) -> Made:
    """ERNIE 4.5: pairs of the rope are adjacent in transformers too, heads larger than their share."""
    config = Ernie4_5Config(
        **sizes(head_dim=16, tie_word_embeddings=True, num_attention_heads=3, num_key_value_heads=1)
    )
    metadata = keys(config, **head_keys(16))
    return write("ernie4_5", Ernie4_5ForCausalLM(config), rng, metadata)


def seed_oss(rng: np.random.Generator) -> Made:
    """Seed-OSS: biases of q, k and v, heads larger than their share."""
    config = SeedOssConfig(
        **sizes(
            head_dim=16,
            num_attention_heads=6,
            attention_bias=True,
            attention_out_bias=False,
            attention_dropout=0.0,
            residual_dropout=0.0,
        )
    )
    metadata = keys(config, **head_keys(16))
    names = {"post_attention_layernorm": "post_attention_norm"}
    return write("seed_oss", SeedOssForCausalLM(config), rng, metadata, names=names)


def hunyuan(rng: np.random.Generator) -> Made:
    """Hunyuan: q and k are normalised after the rope; its scaling is in the base that the file has."""
    rope = {"rope_type": "dynamic", "rope_theta": 5000.0, "alpha": 20.0, "factor": 1.0}
    config = HunYuanDenseV1Config(**sizes(head_dim=16, rope_parameters=rope))
    metadata = keys(
        config,
        attention__key_length=16,
        attention__value_length=16,
        rope__scaling__type="none",
        rope__scaling__factor=1.0,
        rope__scaling__original_context_length=128,
    )
    metadata["rope.freq_base"] = 5000.0 * 20.0 ** (16 / 14)
    names = {"self_attn.query_layernorm": "attn_q_norm", "self_attn.key_layernorm": "attn_k_norm"}
    return write("hunyuan-dense", HunYuanDenseV1ForCausalLM(config), rng, metadata, names=names)


CASES: dict[str, Case] = {
    "smollm3": smollm3,
    "granite": granite,
    "minicpm": minicpm,
    "mistral3": ministral3,
    "ernie4_5": ernie,
    "seed_oss": seed_oss,
    "hunyuan-dense": hunyuan,
}
