"""The configurations beside an exported model: config.json, generation_config.json and genai_config.json."""

from __future__ import annotations

from typing import Any

import numpy as np

from stretto.models.rope import plain_frequencies
from stretto.models.spec import Attention, ModelSpec, Rope
from stretto.text.tokenizer import Tokenizer

Document = dict[str, Any]

# transformers' names of architectures that are called otherwise in GGUF files.
MODEL_TYPES = {
    "command-r": "cohere",
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
    "hunyuan-dense": "hunyuan_v1_dense",
    "mistral3": "ministral3",
    "qwen3vl": "qwen3_vl_text",
}
CLASSES = {
    "cohere": "Cohere",
    "cohere2": "Cohere2",
    "ernie4_5": "Ernie4_5",
    "exaone4": "Exaone4",
    "gemma3_text": "Gemma3",
    "gemma4_text": "Gemma4",
    "glm4": "Glm4",
    "hunyuan_v1_dense": "HunYuanDenseV1",
    "ministral3": "Ministral3",
    "olmo2": "Olmo2",
    "qwen3_vl_text": "Qwen3VLText",
    "seed_oss": "SeedOss",
    "smollm3": "SmolLM3",
}
# Those that onnxruntime-genai knows by name; all others are a "decoder" to it, which is the same.
GENAI_TYPES = {
    *("ernie4_5", "gemma", "gemma2", "gemma3_text", "granite", "llama", "phi3", "qwen2", "qwen3", "smollm3"),
}
ACTIVATIONS = {"silu": "silu", "gelu": "gelu_pytorch_tanh", "gelu_erf": "gelu", "relu2": "relu2"}


def model_type(spec: ModelSpec) -> str:
    """transformers' name of the architecture."""
    return MODEL_TYPES.get(spec.architecture, spec.architecture)


def model_config(spec: ModelSpec, tokenizer: Tokenizer, precision: str) -> Document:
    """config.json: sizes and kinds, by transformers' names. What the graph computes does not depend on it."""
    kind = model_type(spec)
    attention = _first_attention(spec)
    windows = [layer.attention.window if layer.attention else None for layer in spec.layers]
    ffn = next((layer.ffn for layer in spec.layers if layer.ffn is not None), None)
    config: Document = {
        "architectures": [f"{CLASSES.get(kind, kind.capitalize())}ForCausalLM"],
        "model_type": kind,
        "vocab_size": spec.n_vocab,
        "hidden_size": spec.n_embd,
        "intermediate_size": spec.n_ff,
        "num_hidden_layers": spec.n_layer,
        "num_attention_heads": spec.n_head,
        "num_key_value_heads": spec.n_kv_head,
        "head_dim": spec.head_size,
        "hidden_act": ACTIVATIONS[ffn.activation] if ffn is not None else "silu",
        "max_position_embeddings": spec.context_length,
        "attention_bias": attention.bias,
        "tie_word_embeddings": spec.tied,
        "use_cache": True,
        "torch_dtype": "float16" if precision == "f16" else "float32",
        **_rope(spec),
        **special_ids(tokenizer),
    }
    if (norm := spec.output_norm) is not None:
        config["layer_norm_eps" if norm.kind == "layer" else "rms_norm_eps"] = norm.eps
    config["hidden_activation"] = config["hidden_act"]  # Gemma's name for it
    if any(windows):
        config["sliding_window"] = next(window for window in windows if window)
        config["layer_types"] = ["sliding_attention" if window else "full_attention" for window in windows]
    if attention.cap:
        config["attn_logit_softcapping"] = attention.cap
    if spec.logit_cap:
        config["final_logit_softcapping"] = spec.logit_cap
    return config


def special_ids(tokenizer: Tokenizer) -> Document:
    """Where texts begin and end."""
    ends = sorted(tokenizer.end_ids, key=lambda token: (token != tokenizer.eos_id, token))
    return {
        "bos_token_id": tokenizer.bos_id,
        "eos_token_id": ends[0] if len(ends) == 1 else ends or None,
        "pad_token_id": tokenizer.eos_id,
    }


def generation_config(tokenizer: Tokenizer) -> Document:
    """generation_config.json."""
    return {"_from_model_config": True, **special_ids(tokenizer)}


def genai_config(spec: ModelSpec, tokenizer: Tokenizer, shared: bool) -> Document:
    """genai_config.json; `shared`: past and present may be one buffer."""
    ids, kind = special_ids(tokenizer), model_type(spec)
    pad = ids["pad_token_id"]
    decoder = {
        # KleidiAI, on by default on ARM, is less accurate (stretto docs how-to/export).
        "session_options": {
            "log_id": "onnxruntime-genai",
            "mlas.disable_kleidiai": "1",
            "provider_options": [],
        },
        "filename": "model.onnx",
        "head_size": spec.head_size,
        "hidden_size": spec.n_embd,
        "num_attention_heads": spec.n_head,
        "num_hidden_layers": spec.n_layer,
        "num_key_value_heads": spec.n_kv_head,
        "inputs": {
            **{name: name for name in ("input_ids", "attention_mask", "position_ids")},
            "past_key_names": "past_key_values.%d.key",
            "past_value_names": "past_key_values.%d.value",
        },
        "outputs": {
            "logits": "logits",
            "present_key_names": "present.%d.key",
            "present_value_names": "present.%d.value",
        },
    }
    return {
        "model": {
            "type": kind if kind in GENAI_TYPES else "decoder",
            "bos_token_id": ids["bos_token_id"] if ids["bos_token_id"] is not None else pad or 0,
            "eos_token_id": ids["eos_token_id"] if ids["eos_token_id"] is not None else 0,
            "pad_token_id": pad or 0,
            "context_length": spec.context_length,
            "vocab_size": spec.n_vocab,
            "decoder": decoder,
        },
        "search": {
            "do_sample": False,
            "max_length": spec.context_length,
            "num_beams": 1,
            "past_present_share_buffer": shared,
            "top_k": 1,
        },
    }


def _first_attention(spec: ModelSpec) -> Attention:
    return next(layer.attention for layer in spec.layers if layer.attention is not None)


def _rope(spec: ModelSpec) -> Document:
    """The bases of unscaled ropes; nothing where a rope is scaled, as its parameters are not in the spec."""
    ropes: dict[bool, Rope] = {}
    for layer in spec.layers:
        if layer.attention is not None and layer.attention.rope is not None:
            ropes.setdefault(layer.attention.window is None, layer.attention.rope)
    bases = {full: base for full, rope in ropes.items() if (base := _base(rope)) is not None}
    if not ropes or len(bases) < len(ropes):
        return {}
    found: Document = {"rope_theta": bases.get(True, bases.get(False))}
    if len(set(bases.values())) == 2:
        found["rope_local_base_freq"] = bases[False]
    rotated = 2 * len(next(iter(ropes.values())).frequencies)
    if rotated < spec.head_size:
        found["partial_rotary_factor"] = rotated / spec.head_size
    return found


def _base(rope: Rope) -> float | None:
    """The base of an unscaled rope."""
    size = 2 * len(rope.frequencies)
    if size < 4 or rope.magnitude != 1.0:
        return None
    base = float(rope.frequencies[1] ** (-size / 2))
    base = round(base) if abs(base - round(base)) < 1e-6 * base else base
    return base if np.allclose(plain_frequencies(base, size), rope.frequencies, rtol=1e-5) else None
