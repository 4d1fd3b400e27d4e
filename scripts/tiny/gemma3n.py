"""Tiny Gemma 3n: four streams (AltUp), low-rank residuals (Laurel), per-layer embeddings, shared K/V.

llama.cpp has the sizes of the two real models built in: 20 layers with K and V of their own, a rank of 64,
256 numbers of each layer's embeddings, ten sparse layers, a cap of 30. So one small model is for
transformers alone; a second one, with those sizes, is for llama.cpp, and too large to be kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from transformers import Gemma3nForCausalLM, Gemma3nTextConfig
from transformers.models.gemma3n.modeling_gemma3n import Gemma3nTextMLP

from tiny.base import VOCABULARY, Case, Floats, Made, arrays, randomize, run
from tiny.dense_files import AROUND, EPSILON, NAMES, gguf_name, keys, sizes

N_STREAM = 4
LAYER_NAMES = {
    "altup.correction_coefs": "altup_correct_coef",
    "altup.prediction_coefs": "altup_predict_coef",
    "altup.modality_router": "altup_router",
    "altup.router_norm": "altup_router_norm",
    "laurel.linear_left": "laurel_l",
    "laurel.linear_right": "laurel_r",
    "laurel.post_laurel_norm": "laurel_post_norm",
    "per_layer_input_gate": "inp_gate",
    "per_layer_projection": "proj",
    "post_per_layer_input_norm": "post_norm",
}
WHOLE = {
    "model.embed_tokens_per_layer.weight": "per_layer_token_embd.weight",
    "model.per_layer_model_projection.weight": "per_layer_model_proj.weight",
    "model.per_layer_projection_norm.weight": "per_layer_proj_norm.weight",
}


def configure(
    layer_types: list[str], n_shared: int, sparsity: list[float], local_base: float, **other: Any
) -> Gemma3nTextConfig:
    """The configuration: `layer_types` says which layers have windows."""
    ropes = {
        "full_attention": {"rope_type": "default", "rope_theta": 5000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": local_base},
    }
    return Gemma3nTextConfig(
        **(
            sizes(
                head_dim=16,
                tie_word_embeddings=True,
                rope_parameters=ropes,
                num_hidden_layers=len(layer_types),
                layer_types=layer_types,
                num_kv_shared_layers=n_shared,
                activation_sparsity_pattern=sparsity,
                sliding_window=6,
                altup_num_inputs=N_STREAM,
                vocab_size_per_layer_input=VOCABULARY,
            )
            | other
        )
    )


def metadata(config: Gemma3nTextConfig, local_base: float) -> dict[str, Any]:
    """What llama.cpp's converter writes."""
    cutoffs = [float(torch.distributions.Normal(0, 1).icdf(torch.tensor(s))) for s in sparsity_of(config)]
    return keys(
        config,
        feed_forward_length=config.intermediate_size[0],
        rope__freq_base=5000.0,
        rope__freq_base_swa=local_base,
        attention__key_length=config.head_dim,
        attention__value_length=config.head_dim,
        attention__sliding_window=config.sliding_window,
        attention__sliding_window_pattern=[t == "sliding_attention" for t in config.layer_types],
        attention__shared_kv_layers=config.num_kv_shared_layers,
        attention__layer_norm_rms_epsilon=EPSILON,
        final_logit_softcapping=config.final_logit_softcapping,
        embedding_length_per_layer_input=config.hidden_size_per_layer_input,
        altup__active_idx=0,
        altup__num_inputs=N_STREAM,
        activation_sparsity_scale=np.array(cutoffs, np.float32),
    )


def sparsity_of(config: Gemma3nTextConfig) -> list[float]:
    """The share of each layer's gates that is cut off."""
    pattern: list[float] = config.activation_sparsity_pattern
    return pattern


def values_of(
    per_layer: int, deep: bool = False
) -> Callable[[str, tuple[int, ...], np.random.Generator], Floats | None]:
    """The parameters whose variance is not that of other matrices."""

    def special(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> Floats | None:
        if "modality_router" in name:  # its input is divided by the width of the model
            return rng.normal(0, 5, shape)
        if "q_norm" in name:  # scores are not scaled
            return rng.uniform(0.3, 0.7, shape)
        if "prediction_coefs" in name:
            return rng.normal(0, 0.1, shape)
        if deep and (".post_" in name):  # small steps: many layers multiply the differences of rounding
            return rng.uniform(0.05, 0.15, shape)
        if "embed_tokens_per_layer" in name:
            return rng.normal(0, per_layer**-0.5, shape)
        return None

    return special


def tensors_of(model: Gemma3nForCausalLM, rng: np.random.Generator) -> dict[str, Floats]:
    """The tensors of the file; layers that share K and V have matrices for them too, which nothing uses."""
    config, found, stacks = model.config, {}, {"altup_projections": [], "altup_unembed_projections": []}
    for name, array in arrays(model).items():
        stack = name.split(".")[1]
        if stack in stacks:
            stacks[stack].append(array)
        elif name in WHOLE:
            found[WHOLE[name]] = array
        elif name.endswith("correct_output_scale"):
            found[f"blk.{name.split('.')[2]}.altup_correct_scale.weight"] = array
        else:
            found[gguf_name(name, NAMES | AROUND | LAYER_NAMES)] = array
    found["altup_proj.weight"] = np.stack(stacks["altup_projections"])
    found["altup_unembd_proj.weight"] = np.stack(stacks["altup_unembed_projections"])
    for i in range(config.num_hidden_layers - config.num_kv_shared_layers, config.num_hidden_layers):
        for part in ("attn_k.weight", "attn_v.weight", "attn_k_norm.weight"):
            like = found[f"blk.0.{part}"]
            found[f"blk.{i}.{part}"] = rng.normal(0, 1, like.shape).astype(np.float32)
    return found


def gemma3n(rng: np.random.Generator) -> Made:
    """The small one: two sparse layers of different shares, the last two layers share K and V."""
    kinds = [
        "sliding_attention",
        "full_attention",
        "sliding_attention",
        "full_attention",
        "sliding_attention",
    ]
    config = configure(
        kinds,
        2,
        [0.8, 0.6, 0.0, 0.0, 0.0],
        300.0,
        hidden_size_per_layer_input=16,
        laurel_rank=8,
        final_logit_softcapping=2.0,
        intermediate_size=32,
        head_dim=8,
    )
    model = Gemma3nForCausalLM(config).eval().float()
    randomize(model, rng, values_of(16))
    return Made("gemma3n", metadata(config, 300.0), tensors_of(model, rng), run(model))


def gemma3n_large(rng: np.random.Generator) -> Made:
    """The sizes that llama.cpp has built in.

    It divides the variance of the gates by one less than their number, where transformers (and Google's
    own code) divides by the number; here transformers does what llama.cpp does, to compare the rest.
    """
    kinds = ["full_attention" if i % 5 == 4 else "sliding_attention" for i in range(25)]
    config = configure(
        kinds,
        5,
        [0.95] * 10 + [0.0] * 15,
        10_000.0,
        hidden_size_per_layer_input=256,
        laurel_rank=64,
        final_logit_softcapping=30.0,
        intermediate_size=512,
    )
    model = Gemma3nForCausalLM(config).eval().float()
    randomize(model, rng, values_of(256, deep=True))
    compute = run(model)
    cutoff = 1.6448533535003662

    def sparse(self: Gemma3nTextMLP, x: torch.Tensor) -> torch.Tensor:
        spread = torch.std(x, dim=-1, keepdim=True, unbiased=True)
        return torch.relu(x - torch.mean(x, dim=-1, keepdim=True) - spread * cutoff)

    def logits(tokens: Floats) -> Floats:
        original = Gemma3nTextMLP._gaussian_topk
        Gemma3nTextMLP._gaussian_topk = sparse
        try:
            return compute(tokens)
        finally:
            Gemma3nTextMLP._gaussian_topk = original

    return Made("gemma3n", metadata(config, 10_000.0), tensors_of(model, rng), logits)


CASES: dict[str, Case] = {"gemma3n": gemma3n, "gemma3n-large": gemma3n_large}
