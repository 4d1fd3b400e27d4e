"""One entry for each tiny model that is made, converted and tested from this table alone.

An entry is a function that makes a model of transformers, of a few kilobytes, with everything that its
architecture can have switched on and no number at its usual value. `make_table.py` makes of it a GGUF file by
llama.cpp's own converter, a folder as transformers saves it, and transformers' logits of two texts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import transformers as t

from tiny.base import CONTEXT, VOCABULARY

EPSILON = 2.0**-9
HEADS, KV_HEADS, HIDDEN, FEED_FORWARD, LAYERS = 4, 2, 32, 64, 2
ROPE = {"rope_type": "default", "rope_theta": 5000.0}
PLAIN = {"rope_type": "default", "rope_theta": 10_000.0}  # of architectures whose files do not say it
PARTIAL = PLAIN | {"partial_rotary_factor": 0.5}
TOKENS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
LAYER_NORM = {"layer_norm_eps": EPSILON}
WHOLE = PLAIN | {"partial_rotary_factor": 1.0}
LLAMA3 = ROPE | {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 0.25, "high_freq_factor": 2.0}
LLAMA3 |= {"original_max_position_embeddings": 32}
YARN = ROPE | {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
YARN |= {"beta_fast": 4.0, "beta_slow": 0.5, "mscale": 1.0, "mscale_all_dim": 1.0}
NO_DROPOUT = {"residual_dropout": 0.0, "embedding_dropout": 0.0}
NO_GROUPS = {"num_key_value_heads": HEADS}
MAMBA = {
    "vocab_size": VOCABULARY,
    "num_hidden_layers": 3,
    "state_size": 5,
    "conv_kernel": 3,
    "time_step_rank": 6,
} | TOKENS
FALCON = {"layer_norm_epsilon": EPSILON, "rope_parameters": PLAIN, "max_position_embeddings": 2048}
# Of attention to chosen tokens: fewer than the texts have.
CHOSEN = {
    "moe_intermediate_size": 32,
    "num_key_value_heads": HEADS,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "n_routed_experts": 6,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
    "index_n_heads": 10,
    "index_head_dim": 20,
    "index_topk": 11,
    "rms_norm_eps": 1e-6,  # transformers takes no other for the norms within attention
    "experts_implementation": "eager",
}


def sizes(**other: Any) -> dict[str, Any]:
    """The arguments that most configurations have; `other` add and override."""
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": FEED_FORWARD,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": CONTEXT,
        "rope_parameters": dict(ROPE),
        "rms_norm_eps": EPSILON,
        "tie_word_embeddings": False,
        "attn_implementation": "eager",
    } | TOKENS | other  # fmt: skip


def gpt2_sizes(**other: Any) -> dict[str, Any]:
    """The same by the names of GPT-2."""
    return {
        "vocab_size": VOCABULARY,
        "n_embd": HIDDEN,
        "n_layer": LAYERS,
        "n_head": HEADS,
        "n_positions": CONTEXT,
        "n_inner": 4 * HIDDEN,
        "layer_norm_epsilon": EPSILON,
        "attn_implementation": "eager",
    } | TOKENS | other  # fmt: skip


TABLE: dict[str, Callable[[], Any]] = {
    "apertus": lambda: t.ApertusForCausalLM(t.ApertusConfig(**sizes())),
    "arcee": lambda: t.ArceeForCausalLM(t.ArceeConfig(**sizes(tie_word_embeddings=True))),
    "baichuan": lambda: t.LlamaForCausalLM(t.LlamaConfig(**sizes(**NO_GROUPS, rope_parameters=PLAIN))),
    "bailingmoe": lambda: t.Ernie4_5_MoeForCausalLM(
        t.Ernie4_5_MoeConfig(
            **sizes(tie_word_embeddings=False),
            moe_intermediate_size=24,
            moe_num_experts=6,
            moe_k=2,
            moe_num_shared_experts=2,
            moe_layer_start_index=0,
        )
    ),
    "bailingmoe2": lambda: t.Glm4MoeForCausalLM(
        t.Glm4MoeConfig(
            **sizes(num_hidden_layers=3, head_dim=8, rope_parameters=ROPE | {"partial_rotary_factor": 0.5}),
            use_qk_norm=True,
            moe_intermediate_size=24,
            n_routed_experts=6,
            n_shared_experts=1,
            num_experts_per_tok=2,
            first_k_dense_replace=1,
            n_group=3,
            topk_group=2,
            routed_scaling_factor=1.3,
        )
    ),
    "bitnet": lambda: t.BitNetForCausalLM(
        t.BitNetConfig(**sizes(hidden_act="silu", tie_word_embeddings=True))
    ),
    "bitnet-relu2": lambda: t.BitNetForCausalLM(t.BitNetConfig(**sizes(tie_word_embeddings=True))),
    "chatglm": lambda: t.GlmForCausalLM(
        t.GlmConfig(**sizes(rope_parameters=PARTIAL, head_dim=8, attention_bias=True))
    ),
    "codeshell": lambda: t.Starcoder2ForCausalLM(
        t.Starcoder2Config(**sizes(norm_epsilon=EPSILON, sliding_window=None, **NO_DROPOUT))
    ),
    "dbrx": lambda: t.DbrxForCausalLM(
        t.DbrxConfig(
            vocab_size=VOCABULARY,
            d_model=HIDDEN,
            n_heads=HEADS,
            n_layers=LAYERS,
            max_seq_len=CONTEXT,
            rope_parameters=dict(ROPE),
            attn_config={"kv_n_heads": KV_HEADS, "clip_qkv": 0.8, "rope_theta": 5000.0},
            ffn_config={"ffn_hidden_size": 48, "moe_num_experts": 5, "moe_top_k": 2},
            attn_implementation="eager",
            **TOKENS,
        )
    ),
    "deepseek32": lambda: t.DeepseekV32ForCausalLM(
        t.DeepseekV32Config(
            **sizes(**CHOSEN, num_hidden_layers=3, rope_parameters=YARN),
            n_group=3,
            topk_group=2,
            routed_scaling_factor=1.3,
        )
    ),
    "exaone": lambda: t.LlamaForCausalLM(t.LlamaConfig(**sizes(rope_parameters=LLAMA3))),
    "falcon-mamba": lambda: t.FalconMambaForCausalLM(
        t.FalconMambaConfig(**MAMBA, hidden_size=HIDDEN, layer_norm_epsilon=EPSILON, mixer_rms_eps=EPSILON)
    ),
    "internlm2": lambda: t.LlamaForCausalLM(t.LlamaConfig(**sizes())),
    "jamba": lambda: t.JambaForCausalLM(
        t.JambaConfig(
            **sizes(num_hidden_layers=4, intermediate_size=32),
            attn_layer_period=2,
            attn_layer_offset=1,
            expert_layer_period=2,
            expert_layer_offset=1,
            num_experts=4,
            num_experts_per_tok=2,
            mamba_d_state=5,
            mamba_d_conv=3,
            mamba_dt_rank=6,
        )
    ),
    "jais2": lambda: t.Jais2ForCausalLM(t.Jais2Config(**sizes(head_dim=8, **LAYER_NORM))),
    "mamba": lambda: t.MambaForCausalLM(
        t.MambaConfig(**MAMBA, hidden_size=HIDDEN, layer_norm_epsilon=EPSILON, tie_word_embeddings=True)
    ),
    "orion": lambda: t.StableLmForCausalLM(t.StableLmConfig(**sizes(rope_parameters=WHOLE, **LAYER_NORM))),
    "qwen": lambda: t.Qwen2ForCausalLM(t.Qwen2Config(**sizes(**NO_GROUPS))),
    "xverse": lambda: t.LlamaForCausalLM(t.LlamaConfig(**sizes())),
    "bloom": lambda: t.BloomForCausalLM(
        t.BloomConfig(**gpt2_sizes(hidden_size=48, n_head=6, seq_length=CONTEXT))
    ),
    "falcon": lambda: t.FalconForCausalLM(t.FalconConfig(**sizes(**FALCON, tie_word_embeddings=True))),
    "falcon-40b": lambda: t.FalconForCausalLM(
        t.FalconConfig(
            **sizes(**FALCON, new_decoder_architecture=True, num_kv_heads=2, tie_word_embeddings=False)
        )
    ),
    "glm-dsa": lambda: t.GlmMoeDsaForCausalLM(
        t.GlmMoeDsaConfig(
            **sizes(**CHOSEN, num_hidden_layers=4),
            indexer_types=["full", "shared", "full", "shared"],
            routed_scaling_factor=1.6,
        )
    ),
    "gpt2": lambda: t.GPT2LMHeadModel(t.GPT2Config(**gpt2_sizes())),
    "gptneox": lambda: t.GPTNeoXForCausalLM(
        t.GPTNeoXConfig(**sizes(**NO_GROUPS, rope_parameters=PARTIAL, **LAYER_NORM))
    ),
    "gptneox-serial": lambda: t.GPTNeoXForCausalLM(
        t.GPTNeoXConfig(
            **sizes(**NO_GROUPS, rope_parameters=PARTIAL, use_parallel_residual=False, **LAYER_NORM)
        )
    ),
    "mpt": lambda: t.MptForCausalLM(
        t.MptConfig(
            vocab_size=VOCABULARY,
            d_model=48,
            n_heads=6,
            n_layers=LAYERS,
            max_seq_len=CONTEXT,
            layer_norm_epsilon=EPSILON,
            attn_config={"alibi": True, "alibi_bias_max": 8, "clip_qkv": 0.8},
            **TOKENS,
        )
    ),
    "nemotron": lambda: t.NemotronForCausalLM(
        t.NemotronConfig(
            **sizes(norm_eps=EPSILON, rope_parameters=ROPE | {"partial_rotary_factor": 0.5}, head_dim=8)
        )
    ),
    "olmo": lambda: t.OlmoForCausalLM(t.OlmoConfig(**sizes(clip_qkv=0.8))),
    "phi2": lambda: t.PhiForCausalLM(
        t.PhiConfig(**sizes(**NO_GROUPS, intermediate_size=4 * HIDDEN, rope_parameters=PARTIAL, **LAYER_NORM))
    ),
    "stablelm": lambda: t.StableLmForCausalLM(
        t.StableLmConfig(**sizes(rope_parameters=PARTIAL, use_qkv_bias=True, **LAYER_NORM))
    ),
    "stablelm-12b": lambda: t.StableLmForCausalLM(
        t.StableLmConfig(
            **sizes(rope_parameters=PARTIAL, use_parallel_residual=True, qk_layernorm=True, **LAYER_NORM)
        )
    ),
    "starcoder": lambda: t.GPTBigCodeForCausalLM(t.GPTBigCodeConfig(**gpt2_sizes(multi_query=True))),
}

# Settings that transformers does not save, and that real models have.
FURTHER: dict[str, dict[str, Any]] = {
    "chatglm": {"seq_length": CONTEXT, "layernorm_epsilon": EPSILON},
    "falcon": {"num_kv_heads": 1},
    "gpt2": {"n_ctx": CONTEXT},
}
# Of many, those where no row chooses between two tokens of nearly the same score: rounding would decide.
SEEDS = {"deepseek32": 32, "glm-dsa": 18}
# Transformers has no class of these, but one that computes the same: its file gets their names.
STAND_INS = {
    "baichuan": "llama",
    "bailingmoe": "ernie4_5-moe",
    "bailingmoe2": "glm4moe",
    "codeshell": "starcoder2",
    "exaone": "llama",
    "internlm2": "llama",
    "orion": "stablelm",
    "qwen": "qwen2",
    "xverse": "llama",
}
# Saved in float32: llama.cpp's converter computes -exp of the decays in the type that the folder has.
IN_FLOAT32 = ("falcon-mamba", "jamba", "mamba")
# Made of the folder by Stretto: llama.cpp's converter fails with what today's transformers saves.
OWN = ("bitnet", "bitnet-relu2", "gptneox", "gptneox-serial", "mpt", "stablelm-12b")
