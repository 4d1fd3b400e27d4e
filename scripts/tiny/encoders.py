"""Tiny encoders, made by transformers and written in llama.cpp's names.

python scripts/tiny/make_encoders.py [CASE …]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Gemma3TextConfig,
    Gemma3TextModel,
    JinaEmbeddingsV3Config,
    JinaEmbeddingsV3Model,
    ModernBertConfig,
    ModernBertForSequenceClassification,
    NomicBertConfig,
    NomicBertModel,
    PreTrainedConfig,
)

from tiny.base import CONTEXT, VOCABULARY, Floats, arrays, randomize
from tiny.jina import JinaBertV2
from tiny.nomic_experts import EVERY, N_EXPERT, N_USED, ROPE_BASE, NomicBertMoe

HIDDEN, FEED_FORWARD, EPSILON, LABELS = 32, 64, 2.0**-9, 3
MEAN, CLS = 1, 2  # codes of pooling_type


@dataclass(frozen=True)
class Made:
    """One tiny encoder: its file, and what transformers computes: hidden states, scores of the class head."""

    architecture: str
    metadata: dict[str, Any]
    tensors: dict[str, Floats]
    hidden: Callable[[Floats, Floats], Floats]  # int64[n] tokens and types → float32[n, n_embd]
    scores: Callable[[Floats, Floats], Floats] | None = None  # → float32[n_labels]
    vector: Callable[[Floats], Floats] | None = None  # of the hidden states, where it is not only pooled


Case = Callable[[np.random.Generator], Made]


def sizes(**other: Any) -> dict[str, Any]:
    """The arguments that the configurations share, with unusual values."""
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": FEED_FORWARD,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "max_position_embeddings": CONTEXT,
        "layer_norm_eps": EPSILON,
        "pad_token_id": 0,
        "num_labels": LABELS,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "attn_implementation": "eager",
    } | other


def keys(config: PreTrainedConfig, pooling: int, **other: Any) -> dict[str, Any]:
    """The metadata that every file has; `other` add, with `__` for the dots of a key."""
    return {
        "context_length": CONTEXT,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.layer_norm_epsilon": EPSILON,
        "attention.causal": False,
        "pooling_type": pooling,
    } | {key.replace("__", "."): value for key, value in other.items()}


def prepared(model: torch.nn.Module, rng: np.random.Generator) -> torch.nn.Module:
    """The model with random weights; those that would make attention uniform are larger."""

    def special(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> Floats | None:
        if len(shape) == 2 and name.endswith(("query.weight", "key.weight", "Wqkv.weight")):
            return rng.normal(0, 1.4 * shape[-1] ** -0.5, shape)
        if name.endswith(("LayerNorm.weight", "layernorm.weight")):
            return rng.uniform(0.5, 1.5, shape)
        return None

    model = model.eval().float()
    randomize(model, rng, special)
    return model


def written(model: torch.nn.Module, names: dict[str, str], layer: str) -> dict[str, Floats]:
    """Tensors by the names of the file; `names` are of whole tensors and of those in a layer."""
    tensors = {}
    for name, array in arrays(model).items():
        module, _, kind = name.rpartition(".")
        prefix = ""
        if layer in module:
            number, _, module = module.partition(layer)[2].partition(".")
            prefix = f"blk.{number}."
        if names.get(module) is not None:
            tensors[f"{prefix}{names[module]}.{kind}"] = array
    return tensors


def run(model: torch.nn.Module) -> Callable[[Floats, Floats], Floats]:
    """Transformers' last hidden states."""

    def hidden(tokens: Floats, types: Floats) -> Floats:
        given = {"token_type_ids": torch.from_numpy(types)[None]} if types.any() else {}
        with torch.no_grad():
            out: Floats = model(torch.from_numpy(tokens)[None], **given).last_hidden_state[0].numpy()
        return out

    return hidden


def run_scores(model: torch.nn.Module) -> Callable[[Floats, Floats], Floats]:
    """Transformers' scores of a class head."""

    def scores(tokens: Floats, types: Floats) -> Floats:
        given = {"token_type_ids": torch.from_numpy(types)[None]} if types.any() else {}
        with torch.no_grad():
            out: Floats = model(torch.from_numpy(tokens)[None], **given).logits[0].numpy()
        return out

    return scores


EMBEDDINGS = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
}
ROTARY = {
    **EMBEDDINGS,
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "attn_output_norm",
    "post_mlp_layernorm": "layer_output_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down",
}


def bert(rng: np.random.Generator) -> Made:
    """BERT with a class head: pooler and classifier."""
    model = prepared(BertForSequenceClassification(BertConfig(**sizes(type_vocab_size=2))), rng)
    names = {f"bert.{name}": to for name, to in EMBEDDINGS.items()} | {
        "bert.embeddings.position_embeddings": "position_embd",
        "attention.self.query": "attn_q",
        "attention.self.key": "attn_k",
        "attention.self.value": "attn_v",
        "attention.output.dense": "attn_output",
        "attention.output.LayerNorm": "attn_output_norm",
        "intermediate.dense": "ffn_up",
        "output.dense": "ffn_down",
        "output.LayerNorm": "layer_output_norm",
        "bert.pooler.dense": "cls",
        "classifier": "cls.output",
    }
    metadata = keys(model.config, CLS, classifier__output_labels=["no", "maybe", "yes"])
    tensors = written(model, names, "encoder.layer.")
    return Made("bert", metadata, tensors, run(model.bert), run_scores(model))


def fused_qkv(tensors: dict[str, Floats]) -> dict[str, Floats]:
    """The tensors with q, k and v as one, as the files of some encoders have them."""
    for name in [name for name in tensors if ".attn_q." in name]:
        parts = [tensors.pop(name.replace("attn_q", f"attn_{part}")) for part in "qkv"]
        tensors[name.replace("attn_q", "attn_qkv")] = np.concatenate(parts)
    return tensors


def nomic_bert(rng: np.random.Generator) -> Made:
    """Nomic's: a rope, no biases, a gated feed-forward."""
    rope = {"rope_type": "default", "rope_theta": 500.0}
    model = prepared(
        NomicBertModel(NomicBertConfig(**sizes(rope_parameters=rope)), add_pooling_layer=False), rng
    )
    metadata = keys(model.config, MEAN, rope__freq_base=500.0)
    return Made("nomic-bert", metadata, fused_qkv(written(model, ROTARY, "layers.")), run(model))


def jina_bert_v3(rng: np.random.Generator) -> Made:
    """Jina's third: a rope, and biases."""
    rope = {"rope_type": "default", "rope_theta": 700.0}
    config = JinaEmbeddingsV3Config(**sizes(rope_parameters=rope, type_vocab_size=1))
    model = prepared(JinaEmbeddingsV3Model(config, add_pooling_layer=False), rng)
    metadata = keys(config, MEAN, rope__freq_base=700.0)
    return Made("jina-bert-v3", metadata, fused_qkv(written(model, ROTARY, "layers.")), run(model))


def modern_bert(rng: np.random.Generator) -> Made:
    """ModernBERT with a class head: norms before, windows on both sides, two ropes."""
    config = ModernBertConfig(
        **sizes(
            num_hidden_layers=5,
            norm_eps=EPSILON,
            local_attention=14,
            classifier_pooling="mean",
            cls_token_id=1,
            bos_token_id=1,
            sep_token_id=2,
            eos_token_id=2,
            rope_parameters={
                "full_attention": {"rope_type": "default", "rope_theta": 5000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 600.0},
            },
        )
    )
    model = prepared(ModernBertForSequenceClassification(config), rng)
    names = {
        "model.embeddings.tok_embeddings": "token_embd",
        "model.embeddings.norm": "token_embd_norm",
        "attn_norm": "attn_norm",
        "attn.Wqkv": "attn_qkv",
        "attn.Wo": "attn_output",
        "mlp_norm": "ffn_norm",
        "mlp.Wi": "ffn_up",
        "mlp.Wo": "ffn_down",
        "model.final_norm": "output_norm",
        "head.dense": "cls",
        "head.norm": "cls.norm",
        "classifier": "cls.output",
    }
    metadata = keys(
        config,
        CLS,
        rope__freq_base=5000.0,
        rope__freq_base_swa=600.0,
        attention__sliding_window=14,
        classifier__output_labels=["no", "maybe", "yes"],
    )
    return Made(
        "modern-bert", metadata, written(model, names, "layers."), run(model.model), run_scores(model)
    )


def gemma_embedding(rng: np.random.Generator) -> Made:
    """EmbeddingGemma: Gemma 3 in both directions, and two matrices behind the mean."""
    config = Gemma3TextConfig(
        **sizes(
            num_hidden_layers=7,
            num_key_value_heads=2,
            head_dim=8,
            query_pre_attn_scalar=8,
            rms_norm_eps=EPSILON,
            sliding_window=13,
            use_bidirectional_attention=True,
            rope_parameters={
                "full_attention": {"rope_type": "default", "rope_theta": 5000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
            },
        )
    )
    model = Gemma3TextModel(config).eval().float()
    randomize(model, rng, norms_at_zero=lambda _: True)
    names = {
        "embed_tokens": "token_embd",
        "norm": "output_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "self_attn.q_norm": "attn_q_norm",
        "self_attn.k_norm": "attn_k_norm",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "post_attention_norm",
        "pre_feedforward_layernorm": "ffn_norm",
        "post_feedforward_layernorm": "post_ffw_norm",
    }
    tensors = written(model, names, "layers.")
    tensors = {name: array + 1 if "norm" in name else array for name, array in tensors.items()}
    up, down = ((rng.normal(0, 0.2, shape)).astype(np.float32) for shape in ((48, HIDDEN), (HIDDEN, 48)))
    tensors |= {"dense_2.weight": up, "dense_3.weight": down}
    metadata = keys(
        config,
        MEAN,
        attention__head_count_kv=2,
        attention__key_length=8,
        attention__value_length=8,
        attention__layer_norm_rms_epsilon=EPSILON,
        attention__sliding_window=13,
        rope__freq_base=5000.0,
        dense_2_feat_in=HIDDEN,
        dense_2_feat_out=48,
        dense_3_feat_in=48,
        dense_3_feat_out=HIDDEN,
    )

    def vector(hidden: Floats) -> Floats:
        out: Floats = down @ (up @ hidden.mean(0))
        return out

    return Made("gemma-embedding", metadata, tensors, run(model), vector=vector)


def jina_bert_v2(rng: np.random.Generator) -> Made:
    """Jina's second: ALiBi with six heads, which are no power of two, and GeGLU."""
    config = BertConfig(**sizes(hidden_size=48, num_attention_heads=6, type_vocab_size=2))
    model = prepared(JinaBertV2(config), rng)
    tensors = {name.replace("layers.", "blk."): array for name, array in arrays(model).items()}
    return Made("jina-bert-v2", keys(config, MEAN), tensors, run(model))


def nomic_bert_moe(rng: np.random.Generator) -> Made:
    """Nomic's second: experts in every other layer, and biases."""
    config = BertConfig(**sizes(num_hidden_layers=4, type_vocab_size=1))
    model = prepared(NomicBertMoe(config), rng)
    tensors = {name.replace("layers.", "blk."): array for name, array in arrays(model).items()}
    metadata = keys(
        config,
        MEAN,
        moe_every_n_layers=EVERY,
        expert_count=N_EXPERT,
        expert_used_count=N_USED,
        rope__freq_base=ROPE_BASE,
    )
    return Made("nomic-bert-moe", metadata, tensors, run(model))


CASES: dict[str, Case] = {
    "bert": bert,
    "nomic-bert": nomic_bert,
    "nomic-bert-moe": nomic_bert_moe,
    "jina-bert-v2": jina_bert_v2,
    "jina-bert-v3": jina_bert_v3,
    "modern-bert": modern_bert,
    "gemma-embedding": gemma_embedding,
}
