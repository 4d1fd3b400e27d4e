"""Makes tests/data/folders: tiny random models as transformers saves them, and what it computes with them.

    python scripts/make_folders.py [CASE …]

Needs torch and transformers. A folder holds config.json and safetensors files in bfloat16, and answers.npz:
tokens, and the logits of a decoder, or the hidden states and scores of an encoder. scripts/tiny has larger
models of every architecture; scripts/tiny/check_folders.py converts all of them.
"""

from __future__ import annotations

import json
import shutil
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers as t
from safetensors.numpy import save_file

from tiny.base import randomize

FOLDER = Path(__file__).parent.parent / "tests" / "data" / "folders"
TOKENIZER = FOLDER.parent / "tokenizers" / "bytelevel"
VOCABULARY = 64
ROPE = {"rope_type": "default", "rope_theta": 5000.0}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5000.0,
    "factor": 4.0,
    "low_freq_factor": 0.25,
    "high_freq_factor": 2.0,
    "original_max_position_embeddings": 16,
}
YARN = {"rope_type": "yarn", "rope_theta": 5000.0, "factor": 4.0, "original_max_position_embeddings": 16}
BOTH = {"full_attention": ROPE, "sliding_attention": {"rope_type": "default", "rope_theta": 300.0}}


def sizes(**other: Any) -> dict[str, Any]:
    """The arguments that the configurations share."""
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "max_position_embeddings": 64,
        "rms_norm_eps": 2.0**-9,
        "rope_parameters": dict(ROPE),
        "tie_word_embeddings": False,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "attn_implementation": "eager",
    } | other


def encoder_sizes(**other: Any) -> dict[str, Any]:
    """The same, of encoders."""
    dropped = ("num_key_value_heads", "head_dim", "rms_norm_eps", "rope_parameters", "tie_word_embeddings")
    kept = {name: value for name, value in sizes().items() if name not in dropped}
    silent = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "num_labels": 3}
    return kept | silent | {"layer_norm_eps": 2.0**-9} | other


EXPERTS = {"num_experts_per_tok": 2, "experts_implementation": "eager"}
MOE = {**EXPERTS, "moe_intermediate_size": 8}
MLA = {
    "num_key_value_heads": 2,
    "head_dim": 4,
    "q_lora_rank": 8,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 4,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
}
LATENT = {
    **MOE,
    **MLA,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "num_mtp_layers": 0,
}
DECODERS: dict[str, Callable[[], Any]] = {
    "llama": lambda: t.LlamaForCausalLM(t.LlamaConfig(**sizes(rope_parameters=LLAMA3, vocab_size=604))),
    "llama-biases": lambda: t.LlamaForCausalLM(t.LlamaConfig(**sizes(attention_bias=True, mlp_bias=True))),
    "mistral": lambda: t.MistralForCausalLM(t.MistralConfig(**sizes(sliding_window=None))),
    "qwen2": lambda: t.Qwen2ForCausalLM(t.Qwen2Config(**sizes(rope_parameters=YARN))),
    "mistral-window": lambda: t.MistralForCausalLM(t.MistralConfig(**sizes(sliding_window=6))),
    "qwen2-window": lambda: t.Qwen2ForCausalLM(
        t.Qwen2Config(**sizes(use_sliding_window=True, sliding_window=6, max_window_layers=1))
    ),
    "starcoder2-window": lambda: t.Starcoder2ForCausalLM(
        t.Starcoder2Config(**sizes(norm_epsilon=2.0**-9, sliding_window=6))
    ),
    "qwen3": lambda: t.Qwen3ForCausalLM(t.Qwen3Config(**sizes(tie_word_embeddings=True))),
    "gemma3": lambda: t.Gemma3ForCausalLM(
        t.Gemma3TextConfig(
            **sizes(
                num_hidden_layers=3,
                layer_types=["sliding_attention", "full_attention", "sliding_attention"],
                sliding_window=6,
                query_pre_attn_scalar=8,
                rope_parameters=BOTH,
                tie_word_embeddings=True,
            )
        )
    ),
    "gemma4": lambda: t.Gemma4ForCausalLM(
        t.Gemma4TextConfig(
            **sizes(
                num_hidden_layers=11,
                layer_types=["sliding_attention"] * 3
                + ["full_attention"]
                + ["sliding_attention"] * 6
                + ["full_attention"],
                sliding_window=6,
                global_head_dim=16,
                hidden_size_per_layer_input=0,
                rope_parameters={
                    "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
                    "full_attention": {
                        "rope_type": "proportional",
                        "partial_rotary_factor": 0.5,
                        "rope_theta": 5000.0,
                    },
                },
                num_kv_shared_layers=0,
                tie_word_embeddings=True,
            )
        )
    ),
    "phi3": lambda: t.Phi3ForCausalLM(t.Phi3Config(**sizes(sliding_window=None))),
    "mixtral": lambda: t.MixtralForCausalLM(
        t.MixtralConfig(**sizes(**EXPERTS, num_local_experts=3, sliding_window=None))
    ),
    "qwen3moe": lambda: t.Qwen3MoeForCausalLM(
        t.Qwen3MoeConfig(**sizes(**MOE, num_experts=4, norm_topk_prob=True))
    ),
    "olmoe": lambda: t.OlmoeForCausalLM(
        t.OlmoeConfig(**sizes(**EXPERTS, num_experts=4, intermediate_size=8))
    ),
    "ernie4_5-moe": lambda: t.Ernie4_5_MoeForCausalLM(
        t.Ernie4_5_MoeConfig(
            **sizes(
                moe_intermediate_size=8,
                moe_num_experts=4,
                moe_k=2,
                moe_num_shared_experts=2,
                experts_implementation="eager",
            )
        )
    ),
    "hunyuan-moe": lambda: t.HunYuanMoEV1ForCausalLM(
        t.HunYuanMoEV1Config(
            **sizes(num_experts=4, moe_topk=2, intermediate_size=8, experts_implementation="eager")
        )
    ),
    "minimax-m2": lambda: t.MiniMaxM2ForCausalLM(
        t.MiniMaxM2Config(
            **sizes(
                **EXPERTS,
                num_local_experts=4,
                intermediate_size=8,
                rope_parameters={**ROPE, "partial_rotary_factor": 0.5},
            )
        )
    ),
    "dots1": lambda: t.Dots1ForCausalLM(
        t.Dots1Config(
            **sizes(**MOE, n_routed_experts=4, n_shared_experts=1, first_k_dense_replace=1, sliding_window=6)
            | {"max_window_layers": 1}
        )
    ),
    "exaone-moe": lambda: t.ExaoneMoeForCausalLM(
        t.ExaoneMoeConfig(**sizes(**MOE, num_experts=4, sliding_window=6, sliding_window_pattern=2))
    ),
    "mellum": lambda: t.MellumForCausalLM(
        t.MellumConfig(
            **sizes(
                **MOE,
                num_experts=4,
                sliding_window=6,
                layer_types=["sliding_attention", "full_attention"],
                rope_parameters=BOTH,
            )
        )
    ),
    "minicpm3": lambda: t.MiniCPM3ForCausalLM(
        t.MiniCPM3Config(**sizes(scale_emb=3.0, scale_depth=1.1, dim_model_base=12) | MLA)
    ),
    "hy_v3": lambda: t.HYV3ForCausalLM(
        t.HYV3Config(**sizes(**MOE, num_experts=4, num_shared_experts=1, router_scaling_factor=1.6))
    ),
    "mamba2": lambda: t.Mamba2ForCausalLM(
        t.Mamba2Config(
            vocab_size=VOCABULARY,
            hidden_size=16,
            num_hidden_layers=2,
            num_heads=4,
            head_dim=8,
            n_groups=2,
            state_size=6,
            layer_norm_epsilon=2.0**-9,
            chunk_size=8,
        )
    ),
    "phimoe": lambda: t.PhimoeForCausalLM(
        t.PhimoeConfig(
            **{k: v for k, v in sizes(intermediate_size=8).items() if k != "head_dim"},
            **EXPERTS,
            num_local_experts=4,
            router_jitter_noise=0.3,
            attention_bias=True,
            lm_head_bias=True,
        )
    ),
    "llama4": lambda: t.Llama4ForCausalLM(
        t.Llama4TextConfig(
            **sizes(
                intermediate_size=8, intermediate_size_mlp=24, num_local_experts=4, num_experts_per_tok=2
            ),
            interleave_moe_layer_step=2,
            no_rope_layer_interval=2,
            attention_chunk_size=7,
            floor_scale=5,
            attn_scale=0.4,
        )
    ),
    "cohere2moe": lambda: t.Cohere2MoeForCausalLM(
        t.Cohere2MoeConfig(
            **{k: v for k, v in sizes(intermediate_size=8).items() if not k.startswith("r")},
            **EXPERTS,
            layer_norm_eps=2.0**-9,
            prefix_dense_intermediate_size=24,
            num_experts=4,
            num_shared_experts=1,
            expert_selection_fn="softmax",
            layer_types=["full_attention", "sliding_attention"],
            mlp_layer_types=["dense", "sparse"],
            sliding_window=6,
        )
    ),
    "deepseek3": lambda: t.DeepseekV3ForCausalLM(t.DeepseekV3Config(**sizes(**LATENT))),
    "lfm2": lambda: t.Lfm2ForCausalLM(
        t.Lfm2Config(
            **sizes(
                layer_types=["conv", "full_attention"],
                norm_eps=2.0**-9,
                block_auto_adjust_ff_dim=False,
                tie_word_embeddings=True,
            )
        )
    ),
}
ENCODERS: dict[str, Callable[[], Any]] = {
    "bert": lambda: t.BertForSequenceClassification(t.BertConfig(**encoder_sizes(type_vocab_size=2))),
    "xlm-roberta": lambda: t.XLMRobertaForSequenceClassification(
        t.XLMRobertaConfig(**encoder_sizes(pad_token_id=1, max_position_embeddings=66))
    ),
    "nomic-bert": lambda: t.NomicBertModel(
        t.NomicBertConfig(**encoder_sizes(rope_parameters=ROPE)), add_pooling_layer=False
    ),
    "modern-bert": lambda: t.ModernBertForSequenceClassification(
        t.ModernBertConfig(
            **encoder_sizes(
                num_hidden_layers=4,
                norm_eps=2.0**-9,
                local_attention=8,
                classifier_pooling="mean",
                cls_token_id=1,
                sep_token_id=2,
                rope_parameters=BOTH,
            )
        )
    ),
    "gemma-embedding": lambda: t.Gemma3TextModel(
        t.Gemma3TextConfig(
            **sizes(
                query_pre_attn_scalar=8,
                sliding_window=9,
                use_bidirectional_attention=True,
                layer_types=["sliding_attention", "full_attention"],
                rope_parameters=BOTH,
                tie_word_embeddings=True,
            )
        )
    ),
}


def prepared(model: torch.nn.Module, name: str) -> torch.nn.Module:
    """The model with random weights that bfloat16 has exactly."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    model = model.eval().float()
    randomize(model, rng, norms_at_zero=lambda _: "gemma" in name and name != "gemma4")
    for buffer_name, values in model.named_buffers():
        if buffer_name.endswith("e_score_correction_bias"):
            bias = torch.from_numpy(rng.normal(0, 0.3, tuple(values.shape)).astype(np.float32))
            values.data = bias.to(torch.bfloat16).float()
    for values in model.parameters():
        values.data = values.data.to(torch.bfloat16).float()
    for module_name, module in model.named_modules():
        if module_name.endswith("a_layernorm"):  # transformers' own epsilon here is not the configuration's
            module.variance_epsilon = 2.0**-9
    return model


def answers(model: torch.nn.Module, name: str) -> dict[str, np.ndarray]:
    """Tokens, and what comes out."""
    rng = np.random.default_rng(1)
    tokens = rng.integers(3, VOCABULARY, 24)
    given = torch.from_numpy(tokens)[None]
    with torch.no_grad():
        if name in DECODERS:
            return {
                "tokens": tokens.astype(np.int32),
                "logits": model(given, use_cache=False).logits[0].numpy(),
            }
        inner = getattr(model, "base_model", model)
        found = {"tokens": tokens.astype(np.int32), "hidden": inner(given).last_hidden_state[0].numpy()}
        if hasattr(model, "classifier"):
            found["scores"] = model(given).logits[0].numpy()
    return found


def add_tokenizer(folder: Path) -> None:
    """A vocabulary, a chat template and sampling defaults for a model that is loaded as a whole."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TOKENIZER / name, folder / name)
    template = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    (folder / "chat_template.jinja").write_text(template + "<|im_start|>assistant\n")
    settings = {"eos_token_id": [602], "temperature": 0.6, "top_k": 20, "do_sample": True}
    (folder / "generation_config.json").write_text(json.dumps(settings))


def add_modules(folder: Path) -> None:
    """What sentence-transformers saves beside EmbeddingGemma."""
    rng = np.random.default_rng(2)
    kinds = ["Transformer", "Pooling", "Dense", "Dense", "Normalize"]
    paths = ["", "1_Pooling", "2_Dense", "3_Dense", "4_Normalize"]
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(zip(kinds, paths, strict=True))
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    for path, shape in (("2_Dense", (24, 16)), ("3_Dense", (16, 24))):
        (folder / path).mkdir()
        config = {"activation_function": "torch.nn.modules.linear.Identity", "bias": False}
        (folder / path / "config.json").write_text(json.dumps(config))
        save_file(
            {"linear.weight": rng.normal(0, 0.2, shape).astype(np.float32)},
            folder / path / "model.safetensors",
        )


def make(name: str) -> None:
    """Write one folder."""
    model = prepared((DECODERS | ENCODERS)[name](), name)
    folder = FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    found = answers(model, name)
    shards = {"max_shard_size": "12KB"} if name in ("qwen3", "mixtral") else {}
    model.to(torch.bfloat16).save_pretrained(folder, **shards)
    (folder / "generation_config.json").unlink(missing_ok=True)
    np.savez_compressed(folder / "answers.npz", **found)
    if name == "llama":
        add_tokenizer(folder)
    if name == "gemma-embedding":
        add_modules(folder)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{name}: {size} bytes")


def main(names: list[str]) -> None:
    """Make the named cases, or all."""
    torch.set_num_threads(1)
    for name in names or [*DECODERS, *ENCODERS]:
        make(name)


if __name__ == "__main__":
    main(sys.argv[1:])
