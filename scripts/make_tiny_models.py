"""Makes the tiny random models of the tests, and the logits that `transformers` computes for them.

    python scripts/make_tiny_models.py [CASE …]

writes tests/data/tiny/CASE.gguf and tests/data/tiny/golden.npz, always the same. It needs torch and
transformers; the tests, which read the files, do not.

Each model has every optional piece of its architecture, and no constant at its usual value: a decoder that
ignores what a file says cannot pass. Weights are drawn so that activations and logits have about unit
variance, so that no piece can be wrong unnoticed. All of them are exact in float16.
"""

from __future__ import annotations

import math
import sys
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from stretto.weights.writer import write_gguf

FOLDER = Path(__file__).parent.parent / "tests" / "data" / "tiny"
LENGTHS = 48, 33  # of the two texts: beyond the original context of every scaled rope, and every window
VOCABULARY, HIDDEN, FEED_FORWARD, HEADS, CONTEXT = 96, 32, 48, 4, 128

CLASSES = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "gemma3": (Gemma3TextConfig, Gemma3ForCausalLM),
}


@dataclass(frozen=True)
class Case:
    """One model. Numbers are such that float32, as the file has them, holds them exactly."""

    architecture: str
    head_size: int
    n_kv_head: int
    tied: bool = True
    n_layer: int = 3
    base: float = 5000.0
    eps: float = 2.0**-9
    scaling: dict[str, Any] = field(default_factory=dict)  # as transformers names it
    window: int = 0
    local_base: float = 0.0


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
CASES = {
    "llama": Case("llama", head_size=16, n_kv_head=2, tied=False),
    "llama-linear": Case("llama", head_size=8, n_kv_head=4, scaling={"rope_type": "linear", "factor": 4.0}),
    "llama-llama3": Case(
        "llama", head_size=16, n_kv_head=2, scaling=LLAMA3 | {"original_max_position_embeddings": 32}
    ),
    "llama-yarn": Case("llama", head_size=16, n_kv_head=1, tied=False, scaling=YARN),
    "qwen2": Case("qwen2", head_size=8, n_kv_head=2),
    "qwen2-yarn": Case(
        "qwen2", head_size=8, n_kv_head=1, tied=False, scaling=YARN | {"beta_fast": 4.0, "beta_slow": 0.25}
    ),
    "qwen3": Case("qwen3", head_size=16, n_kv_head=2),
    "gemma3": Case("gemma3", head_size=16, n_kv_head=1, n_layer=7, base=40000.0, window=8, local_base=3000.0),
    "gemma3-linear": Case(
        "gemma3",
        head_size=8,
        n_kv_head=2,
        n_layer=7,
        base=2000.0,
        window=5,
        local_base=500.0,
        scaling={"rope_type": "linear", "factor": 8.0},
    ),
}

NAMES = {  # of a layer's tensors, in transformers and in GGUF
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
    "post_attention_layernorm": "ffn_norm",
}
GEMMA_NAMES = NAMES | {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def build(case: Case, rng: np.random.Generator) -> torch.nn.Module:
    """The model in transformers, with weights of `rng`."""
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": case.base} | case.scaling
    settings: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": FEED_FORWARD,
        "num_hidden_layers": case.n_layer,
        "num_attention_heads": HEADS,
        "num_key_value_heads": case.n_kv_head,
        "head_dim": case.head_size,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": case.eps,
        "tie_word_embeddings": case.tied,
        "rope_parameters": rope,
        "attn_implementation": "eager",
    }
    if case.architecture == "gemma3":
        near = {"rope_type": "default", "rope_theta": case.local_base}
        settings |= {
            "sliding_window": case.window,
            "query_pre_attn_scalar": case.head_size,
            "rope_parameters": {"full_attention": rope, "sliding_attention": near},
        }
    make_config, make_model = CLASSES[case.architecture]
    model = make_model(make_config(**settings)).eval().float()
    for name, parameter in model.named_parameters():
        values = weights(name, tuple(parameter.shape), case.architecture == "gemma3", rng)
        parameter.data = torch.from_numpy(values)
    model.tie_weights()
    return model


def weights(name: str, shape: tuple[int, ...], gemma: bool, rng: np.random.Generator) -> np.ndarray:
    """float32, exact in float16. Norms lie around one, which Gemma adds by itself."""
    if "norm" in name:
        values = rng.uniform(-0.5, 0.5, shape)
        # On a grid that 1 + w shares, so that either way the file has what the model has.
        values = np.round(values * 512) / 512 + (0 if gemma else 1)
    elif name.endswith(".bias"):
        values = rng.normal(0, 0.5, shape)
    else:
        # A sum over the row then has the variance of what is summed; sharper attention than that.
        gain = 1.4 if "q_proj" in name or "k_proj" in name else 1.0
        values = rng.normal(0, gain * shape[1] ** -0.5, shape)
    return values.astype(np.float16).astype(np.float32)


def tensors(model: torch.nn.Module, case: Case) -> dict[str, np.ndarray]:
    """The model's tensors as a GGUF file has them: matrices in float16, vectors in float32."""
    gemma = case.architecture == "gemma3"
    found = {}
    for name, parameter in model.named_parameters():
        array = parameter.detach().numpy()
        if "norm" in name and gemma:
            array = array + np.float32(1)
        if case.architecture == "llama" and ("q_proj" in name or "k_proj" in name):
            array = adjacent(array, case.head_size)
        found[gguf_name(name, gemma)] = array.astype(np.float16) if array.ndim == 2 else array
    if case.scaling.get("rope_type") == "llama3":
        found["rope_freqs.weight"] = llama3_factors(case)
    return found


def gguf_name(name: str, gemma: bool) -> str:
    whole = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if name in whole:
        return whole[name]
    _, _, layer, rest = name.split(".", 3)
    module, kind = rest.rsplit(".", 1)
    return f"blk.{layer}.{(GEMMA_NAMES if gemma else NAMES)[module]}.{kind}"


def adjacent(matrix: np.ndarray, head_size: int) -> np.ndarray:
    """Rows reordered within each head: transformers turns (i, i + d/2), llama files (2i, 2i + 1)."""
    halves = matrix.reshape(-1, 2, head_size // 2, matrix.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(matrix.shape)


def llama3_factors(case: Case) -> np.ndarray:
    """float32[head_size / 2]: what Llama 3 divides its frequencies by."""
    s = case.scaling
    turns = [
        s["original_max_position_embeddings"] * case.base ** (-i / case.head_size) / (2 * math.pi)
        for i in range(0, case.head_size, 2)
    ]
    factors = []
    for n in turns:  # within the original context
        kept = (n - s["low_freq_factor"]) / (s["high_freq_factor"] - s["low_freq_factor"])
        kept = min(max(kept, 0.0), 1.0)
        factors.append(1 / (kept + (1 - kept) / s["factor"]))
    return np.array(factors, np.float32)


def metadata(case: Case) -> dict[str, Any]:
    arch = case.architecture
    keys: dict[str, Any] = {
        "context_length": CONTEXT,
        "embedding_length": HIDDEN,
        "block_count": case.n_layer,
        "feed_forward_length": FEED_FORWARD,
        "attention.head_count": HEADS,
        "attention.head_count_kv": case.n_kv_head,
        "attention.key_length": case.head_size,
        "attention.value_length": case.head_size,
        "attention.layer_norm_rms_epsilon": case.eps,
        "rope.dimension_count": case.head_size,
        "rope.freq_base": case.base,
    }
    if case.window:
        keys |= {"attention.sliding_window": case.window, "rope.freq_base_swa": case.local_base}
    kind = case.scaling.get("rope_type")
    if kind in ("linear", "yarn"):
        keys |= {"rope.scaling.type": kind, "rope.scaling.factor": case.scaling["factor"]}
    if kind == "yarn":
        keys["rope.scaling.original_context_length"] = case.scaling["original_max_position_embeddings"]
        for name in ("beta_fast", "beta_slow"):
            if name in case.scaling:
                keys[f"rope.scaling.yarn_{name}"] = case.scaling[name]
    return {"general.architecture": arch} | {f"{arch}.{key}": value for key, value in keys.items()}


def golden(model: torch.nn.Module, case: Case, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Tokens and logits of each text, and the frequencies that transformers turns by."""
    found: dict[str, np.ndarray] = {}
    for i, length in enumerate(LENGTHS):
        tokens = rng.integers(0, VOCABULARY, length)
        with torch.no_grad():
            logits = model(torch.from_numpy(tokens)[None]).logits[0]
        found |= {f"tokens.{i}": tokens.astype(np.int32), f"logits.{i}": logits.numpy()}
    rope = model.model.rotary_emb
    prefix = "full_attention_" if case.architecture == "gemma3" else ""
    found["frequencies"] = getattr(rope, f"{prefix}inv_freq").numpy()
    found["magnitude"] = np.float64(getattr(rope, f"{prefix}attention_scaling"))
    if case.architecture == "gemma3":
        found["local_frequencies"] = rope.sliding_attention_inv_freq.numpy()
    return found


def main(names: list[str]) -> None:
    torch.set_num_threads(1)  # one order of summation
    FOLDER.mkdir(parents=True, exist_ok=True)
    answers = {}
    for name in names or CASES:
        case = CASES[name]
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        model = build(case, rng)
        write_gguf(FOLDER / f"{name}.gguf", metadata(case), tensors(model, case))
        found = golden(model, case, rng)
        answers |= {f"{name}/{key}": value for key, value in found.items()}
        spread = ", ".join(f"{found[f'logits.{i}'].std():.2f}" for i in range(len(LENGTHS)))
        print(f"{name}: {(FOLDER / f'{name}.gguf').stat().st_size} bytes, logits vary by {spread}")
    if not names:
        np.savez(FOLDER / "golden.npz", **answers)


if __name__ == "__main__":
    main(sys.argv[1:])
