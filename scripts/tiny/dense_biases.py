"""Tiny models with layer norms, biases, parallel branches and fused matrices."""

from __future__ import annotations

import numpy as np
from transformers import (
    Cohere2Config,
    Cohere2ForCausalLM,
    CohereConfig,
    CohereForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    Starcoder2Config,
    Starcoder2ForCausalLM,
)

from tiny.base import Case, Floats, Made
from tiny.dense_files import EPSILON, keys, sizes, write

SHORT = (1.0, 1.1, 1.3, 1.6, 2.0, 2.5)  # divisors of the frequencies of a rope over 12 numbers
LONG = (1.2, 1.7, 2.9, 5.0, 8.0, 13.0)


def starcoder2(rng: np.random.Generator) -> Made:
    """StarCoder 2: layer norms, biases everywhere, a plain feed-forward."""
    config = Starcoder2Config(
        **sizes(
            num_attention_heads=6,
            hidden_size=48,
            norm_epsilon=EPSILON,
            use_bias=True,
            tie_word_embeddings=True,
            residual_dropout=0.0,
            embedding_dropout=0.0,
        )
    )
    metadata = keys(config, attention__layer_norm_epsilon=EPSILON)
    del metadata["attention.layer_norm_rms_epsilon"]
    names = {"mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"}
    return write("starcoder2", Starcoder2ForCausalLM(config), rng, metadata, names=names)


def command_r(rng: np.random.Generator) -> Made:
    """Command R: attention and feed-forward side by side, adjacent pairs, scaled logits."""
    config = CohereConfig(**sizes(layer_norm_eps=EPSILON, tie_word_embeddings=True, logit_scale=0.75))
    metadata = keys(
        config, attention__layer_norm_epsilon=EPSILON, logit_scale=0.75, rope__scaling__type="none"
    )
    del metadata["attention.layer_norm_rms_epsilon"]
    return write("command-r", CohereForCausalLM(config), rng, metadata)


def command_r_plus(rng: np.random.Generator) -> Made:
    """Command R+: q and k normalised, each head with weights of its own.

    llama.cpp looks for these norms only in models of 64 layers and more.
    """
    config = CohereConfig(
        **sizes(
            num_hidden_layers=64,
            hidden_size=8,
            intermediate_size=8,
            num_attention_heads=2,
            num_key_value_heads=1,
            layer_norm_eps=EPSILON,
            tie_word_embeddings=True,
            logit_scale=0.75,
            use_qk_norm=True,
        )
    )
    metadata = keys(
        config, attention__layer_norm_epsilon=EPSILON, logit_scale=0.75, rope__scaling__type="none"
    )
    del metadata["attention.layer_norm_rms_epsilon"]

    def special(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> Floats | None:
        if "_norm.weight" in name and len(shape) == 2:
            return rng.uniform(0.5, 1.5, shape)
        # Small steps: 64 layers multiply the differences of rounding otherwise.
        return rng.normal(0, 0.1, shape) if "o_proj" in name or "down_proj" in name else None

    return write("command-r", CohereForCausalLM(config), rng, metadata, special=special)


def cohere2(rng: np.random.Generator) -> Made:
    """Command R7B: windows and a rope in three of four layers, the others have neither."""
    config = Cohere2Config(
        **sizes(
            num_hidden_layers=5,
            layer_norm_eps=EPSILON,
            tie_word_embeddings=True,
            logit_scale=0.75,
            sliding_window=6,
        )
    )
    metadata = keys(
        config,
        attention__layer_norm_epsilon=EPSILON,
        attention__sliding_window=6,
        logit_scale=0.75,
        rope__dimension_count=8,
        rope__scaling__type="none",
    )
    del metadata["attention.layer_norm_rms_epsilon"]
    return write("cohere2", Cohere2ForCausalLM(config), rng, metadata)


def phi3_like(
    rng: np.random.Generator, *, context: int, original: int, tied: bool, window: int | None = None
) -> Made:
    """Phi-3 and Phi-4: fused q, k, v and gate, up; a rope of three quarters of a head, with factors.

    Transformers takes the long factors for texts beyond the original context, llama.cpp for contexts.
    """
    rope = {
        "rope_type": "longrope",
        "rope_theta": 5000.0,
        "partial_rotary_factor": 0.75,
        "short_factor": list(SHORT),
        "long_factor": list(LONG),
        "original_max_position_embeddings": original,
    }
    config = Phi3Config(
        **sizes(
            hidden_size=64,
            num_hidden_layers=2,
            max_position_embeddings=context,
            original_max_position_embeddings=original,
            rope_parameters=rope,
            sliding_window=window,
            tie_word_embeddings=tied,
        )
    )
    metadata = keys(
        config,
        rope__dimension_count=12,
        rope__scaling__original_context_length=original,
        rope__scaling__attn_factor=float(np.sqrt(1 + np.log(context / original) / np.log(original))),
        attention__sliding_window=window or 0,
    )
    names = {"self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up"}
    made = write("phi3", Phi3ForCausalLM(config), rng, metadata, names=names)
    made.tensors["rope_factors_long.weight"] = np.array(LONG, np.float32)
    made.tensors["rope_factors_short.weight"] = np.array(SHORT, np.float32)
    return made


def phi3_long(rng: np.random.Generator) -> Made:
    """Both texts are longer than the original context."""
    return phi3_like(rng, context=128, original=24, tied=True)


def phi3_short(rng: np.random.Generator) -> Made:
    """Both texts, and llama.cpp's smallest context, are shorter than the original context."""
    return phi3_like(rng, context=4096, original=1024, tied=False)


def phi3_window(rng: np.random.Generator) -> Made:
    """A Phi-3 mini of 4k: factors of neither kind, a window in all layers, which llama.cpp ignores."""
    config = Phi3Config(**sizes(hidden_size=64, num_hidden_layers=2, sliding_window=7))
    metadata = keys(
        config,
        rope__dimension_count=16,
        rope__scaling__original_context_length=128,
        attention__sliding_window=7,
    )
    names = {"self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up"}
    return write("phi3", Phi3ForCausalLM(config), rng, metadata, names=names)


CASES: dict[str, Case] = {
    "starcoder2": starcoder2,
    "command-r": command_r,
    "command-r-plus": command_r_plus,
    "cohere2": cohere2,
    "phi3-long": phi3_long,
    "phi3-short": phi3_short,
    "phi3-window": phi3_window,
}
