"""Tiny gpt-oss models: sinks, alternating windows, biases everywhere, a clamped SwiGLU."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType, quants
from transformers import GptOssConfig, GptOssForCausalLM

from stretto.weights.formats import Format
from stretto.weights.tensor import Tensor
from tiny.base import CONTEXT, VOCABULARY, Case, Floats, Made, randomize, run
from tiny.names import convert

HIDDEN, EXPERT, HEAD, WINDOW = 32, 32, 16, 11
EPS = 2.0**-9
MXFP4 = GGMLQuantizationType.MXFP4
FACTOR = 4.0  # of the rope's scaling


def special(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> Floats | None:
    """Sinks that take a good share, gates that often meet the clamp at 7, experts stored transposed."""
    if name.endswith("sinks"):
        return rng.normal(1.0, 1.0, shape)
    if name.endswith("gate_up_proj"):
        return rng.normal(0, 4 * shape[1] ** -0.5, shape)
    if name.endswith("experts.down_proj"):
        return rng.normal(0, 0.1 * shape[1] ** -0.5, shape)
    if name.endswith("proj_bias"):
        return rng.normal(0, 0.5, shape)
    return None


def change(name: str, array: Floats) -> dict[str, Floats] | None:
    """Experts: input and output swapped, gate and up apart (transformers interleaves them)."""
    match name:
        case "mlp.experts.gate_up_proj":
            rows = array.swapaxes(1, 2)
            return {"ffn_gate_exps.weight": rows[:, ::2], "ffn_up_exps.weight": rows[:, 1::2]}
        case "mlp.experts.gate_up_proj_bias":
            return {"ffn_gate_exps.bias": array[:, ::2], "ffn_up_exps.bias": array[:, 1::2]}
        case "mlp.experts.down_proj":
            return {"ffn_down_exps.weight": array.swapaxes(1, 2)}
        case "mlp.experts.down_proj_bias":
            return {"ffn_down_exps.bias": array}
    return None


def build(base: float, original: int, fast: float, slow: float) -> tuple[GptOssForCausalLM, dict[str, Any]]:
    """The model and its file's metadata. Layers alternate, the first has a window."""
    layers = 2
    config = GptOssConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=EXPERT,
        num_hidden_layers=layers,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=HEAD,
        num_local_experts=5,
        num_experts_per_tok=3,
        sliding_window=WINDOW,
        max_position_embeddings=CONTEXT,
        rms_norm_eps=EPS,
        tie_word_embeddings=False,
        attention_bias=True,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": base,
            "factor": FACTOR,
            "beta_fast": fast,
            "beta_slow": slow,
            "original_max_position_embeddings": original,
            "truncate": False,
        },
        pad_token_id=0,
        attn_implementation="eager",
        experts_implementation="eager",
    )
    meta = {
        "context_length": CONTEXT,
        "embedding_length": HIDDEN,
        "block_count": layers,
        "feed_forward_length": EXPERT,
        "attention.head_count": 6,
        "attention.head_count_kv": 2,
        "attention.key_length": HEAD,
        "attention.value_length": HEAD,
        "attention.layer_norm_rms_epsilon": EPS,
        "attention.sliding_window": WINDOW,
        "rope.freq_base": base,
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": FACTOR,
        "rope.scaling.original_context_length": original,
        "rope.scaling.yarn_beta_fast": fast,
        "rope.scaling.yarn_beta_slow": slow,
        "expert_count": 5,
        "expert_used_count": 3,
        "expert_feed_forward_length": EXPERT,
    }
    return GptOssForCausalLM(config).eval().float(), meta


def tensors_of(model: GptOssForCausalLM) -> dict[str, Floats]:
    """The file's tensors."""
    return convert(model, {"post_attention_layernorm": "post_attention_norm"}, change)


def gptoss(rng: np.random.Generator) -> Made:
    """Frequencies between plain and scaled ones, by a ramp that begins and ends outside the head.

    So its ends are whole numbers, as llama.cpp needs it; see `gptoss_ramp`. They stand for 32 turns and 1, as
    in the real models: llama.cpp does not read others for this architecture.
    """
    model, meta = build(4.0, 96, 32.0, 1.0)
    randomize(model, rng, special)
    return Made("gpt-oss", meta, tensors_of(model), run(model))


def gptoss_ramp(rng: np.random.Generator) -> Made:
    """A ramp that ends between two pairs, as in the real models.

    Transformers and OpenAI's own code leave the ends as they are ("truncate": False); llama.cpp rounds them
    outwards as for every other model, and so differs here (by 0.1 and more).
    """
    model, meta = build(900.0, 24, 8.0, 0.5)
    randomize(model, rng, special)
    return Made("gpt-oss", meta, tensors_of(model), run(model))


def gptoss_mxfp4(rng: np.random.Generator) -> Made:
    """Experts in MXFP4, as in the real files; transformers computes with the dequantised weights.

    llama.cpp rounds activations to 8 bits before it multiplies them with MXFP4, and so differs (by 0.05).
    """
    model, meta = build(4.0, 96, 32.0, 1.0)
    randomize(model, rng, special)
    for layer in model.model.layers:
        for weights in (layer.mlp.experts.gate_up_proj, layer.mlp.experts.down_proj):
            rows = np.ascontiguousarray(weights.detach().numpy().swapaxes(1, 2))
            rounded = quants.dequantize(quants.quantize(rows, MXFP4), MXFP4)
            weights.data = torch.from_numpy(np.ascontiguousarray(rounded.swapaxes(1, 2)))
    tensors: dict[str, Any] = tensors_of(model)
    for name, array in tensors.items():
        if name.endswith("exps.weight"):  # already rounded, so that nothing is lost
            tensors[name] = Tensor(name, array.shape, Format.MXFP4, 0, quants.quantize(array, MXFP4))
    return Made("gpt-oss", meta, tensors, run(model))


CASES: dict[str, Case] = {"gpt-oss": gptoss, "gpt-oss-ramp": gptoss_ramp, "gpt-oss-mxfp4": gptoss_mxfp4}
