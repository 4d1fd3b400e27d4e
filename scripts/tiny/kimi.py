"""A tiny Kimi Linear. Transformers has no class of it: this is the paper's recurrence in NumPy, float64.

Run as a program, it writes the folder of tests/data/folders.

Kimi Linear: An Expressive, Efficient Attention Architecture (arXiv 2510.26692), equations 1 to 10; names and
layouts of the file after llama.cpp, which is compared by check_xllamacpp.py.
"""

from __future__ import annotations

import json
import sys
import zlib
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

sys.path.insert(0, str(Path(__file__).parent.parent))

from tiny.base import CONTEXT, VOCABULARY, Case, Floats, Made

FOLDERS = Path(__file__).parents[2] / "tests" / "data" / "folders"
HIDDEN, HEADS, HEAD, KERNEL, LAYERS = 32, 2, 12, 3, 4
WIDTH = HEADS * HEAD
NOPE, ROPE, VALUE, RANK = 8, 4, 10, 12  # of latent attention
FEED_FORWARD, EXPERT, N_EXPERT, USED, SCALE = 40, 16, 6, 3, 1.7
EPSILON = 2.0**-9
ATTENDS = 1  # the layer that attends


def sigmoid(x: Floats) -> Floats:
    """1 / (1 + e^−x)."""
    out: Floats = 1 / (1 + np.exp(-x))
    return out


def silu(x: Floats) -> Floats:
    """x × sigmoid(x)."""
    return x * sigmoid(x)


def rms(x: Floats, weight: Floats) -> Floats:
    """An RMS norm along the last axis."""
    out: Floats = x / np.sqrt((x * x).mean(-1, keepdims=True) + EPSILON) * weight
    return out


def unit(x: Floats) -> Floats:
    """Vectors of length 1."""
    out: Floats = x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6)
    return out


def convolved(x: Floats, taps: Floats) -> Floats:
    """silu of each channel's last inputs times its taps: x [n, channels], taps [channels, kernel]."""
    padded = np.concatenate((np.zeros((KERNEL - 1, x.shape[1])), x))
    return silu(sum(padded[j : j + len(x)] * taps[:, j] for j in range(KERNEL)))


def delta_attention(w: dict[str, Floats], x: Floats) -> Floats:
    """S = (I − beta k kᵀ) Diag(alpha) S + beta k vᵀ for each token, o = Sᵀ q; gated."""
    n = len(x)
    q, k, v = (
        convolved(x @ w[f"attn_{name}.weight"].T, w[f"ssm_conv1d_{name}.weight"]).reshape(n, HEADS, HEAD)
        for name in "qkv"
    )
    q, k, beta = unit(q) * HEAD**-0.5, unit(k), sigmoid(x @ w["ssm_beta.weight"].T)
    raw = x @ w["ssm_f_a.weight"].T @ w["ssm_f_b.weight"].T + w["ssm_dt.bias"]
    alpha = np.exp(w["ssm_a"][:, None] * np.log1p(np.exp(raw)).reshape(n, HEADS, HEAD))
    out, state = np.empty((n, HEADS, HEAD)), np.zeros((HEADS, HEAD, HEAD))
    for t in range(n):
        for h in range(HEADS):
            decayed, key = alpha[t, h][:, None] * state[h], k[t, h][:, None]
            state[h] = (np.eye(HEAD) - beta[t, h] * key @ key.T) @ decayed + beta[t, h] * key * v[t, h]
            out[t, h] = state[h].T @ q[t, h]
    gate = sigmoid(x @ w["ssm_g_a.weight"].T @ w["ssm_g_b.weight"].T)
    return (rms(out, w["ssm_norm.weight"]).reshape(n, -1) * gate) @ w["attn_output.weight"].T


def latent_attention(w: dict[str, Floats], x: Floats) -> Floats:
    """Multi-head latent attention without positions."""
    n = len(x)
    q = (x @ w["attn_q.weight"].T).reshape(n, HEADS, NOPE + ROPE)
    compressed = x @ w["attn_kv_a_mqa.weight"].T
    latent = rms(compressed[:, :RANK], w["attn_kv_a_norm.weight"])
    k = np.einsum("nr,hrd->nhd", latent, w["attn_k_b.weight"])
    k = np.concatenate((k, np.repeat(compressed[:, None, RANK:], HEADS, axis=1)), axis=2)
    v = np.einsum("nr,hvr->nhv", latent, w["attn_v_b.weight"])
    scores = np.einsum("nhd,mhd->hnm", q, k) * (NOPE + ROPE) ** -0.5
    scores = np.where(np.tril(np.ones((n, n), bool)), scores, -np.inf)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    return np.einsum("hnm,mhv->nhv", shares, v).reshape(n, -1) @ w["attn_output.weight"].T


def feed_forward(w: dict[str, Floats], x: Floats) -> Floats:
    """A dense one, or experts chosen by a corrected sigmoid and one that all tokens have."""

    def dense(x: Floats, gate: Floats, up: Floats, down: Floats) -> Floats:
        return (silu(x @ gate.T) * (x @ up.T)) @ down.T

    if "ffn_gate.weight" in w:
        return dense(x, *(w[f"ffn_{part}.weight"] for part in ("gate", "up", "down")))
    out = dense(x, *(w[f"ffn_{part}_shexp.weight"] for part in ("gate", "up", "down")))
    scores = sigmoid(x @ w["ffn_gate_inp.weight"].T)
    for row, given in enumerate(scores):
        chosen = np.argsort(-(given + w["exp_probs_b.bias"]))[:USED]
        for e in chosen:
            expert = (w[f"ffn_{part}_exps.weight"][e] for part in ("gate", "up", "down"))
            out[row] += SCALE * given[e] / given[chosen].sum() * dense(x[row], *expert)
    return out


def shapes(layer: int) -> dict[str, tuple[int, ...]]:
    """The tensors of a layer."""
    found: dict[str, tuple[int, ...]] = {"attn_norm.weight": (HIDDEN,), "ffn_norm.weight": (HIDDEN,)}
    if layer == ATTENDS:
        found |= {
            "attn_q.weight": (HEADS * (NOPE + ROPE), HIDDEN),
            "attn_kv_a_mqa.weight": (RANK + ROPE, HIDDEN),
            "attn_kv_a_norm.weight": (RANK,),
            "attn_k_b.weight": (HEADS, RANK, NOPE),
            "attn_v_b.weight": (HEADS, VALUE, RANK),
            "attn_output.weight": (HIDDEN, HEADS * VALUE),
        }
    else:
        found |= {f"attn_{name}.weight": (WIDTH, HIDDEN) for name in "qkv"}
        found |= {f"ssm_conv1d_{name}.weight": (WIDTH, KERNEL) for name in "qkv"}
        found |= {f"ssm_{name}_a.weight": (HEAD, HIDDEN) for name in "fg"}
        found |= {f"ssm_{name}_b.weight": (WIDTH, HEAD) for name in "fg"}
        found |= {"ssm_beta.weight": (HEADS, HIDDEN), "ssm_a": (HEADS,), "ssm_dt.bias": (WIDTH,)}
        found |= {"ssm_norm.weight": (HEAD,), "attn_output.weight": (HIDDEN, WIDTH)}
    if layer == 0:
        return found | feed_forward_shapes("", FEED_FORWARD)
    found |= {"ffn_gate_inp.weight": (N_EXPERT, HIDDEN), "exp_probs_b.bias": (N_EXPERT,)}
    found |= feed_forward_shapes("_shexp", EXPERT)
    stacked = feed_forward_shapes("_exps", EXPERT)
    return found | {name: (N_EXPERT, *shape) for name, shape in stacked.items()}


def feed_forward_shapes(end: str, width: int) -> dict[str, tuple[int, ...]]:
    """The matrices of a feed-forward."""
    rows = {f"ffn_{part}{end}.weight": (width, HIDDEN) for part in ("gate", "up")}
    return rows | {f"ffn_down{end}.weight": (HIDDEN, width)}


def draw(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> Floats:
    """Random numbers for a tensor; decays for which a state lasts some ten tokens."""
    if name.endswith("norm.weight"):
        return rng.uniform(0.5, 1.5, shape)
    if name == "ssm_a":
        return -np.exp(rng.normal(-2.5, 0.5, shape))
    if len(shape) == 1:
        return rng.normal(0, 0.5, shape)
    return rng.normal(0, shape[-1] ** -0.5, shape)


def kimi_linear(rng: np.random.Generator) -> Made:
    """Kimi Linear: three layers of delta attention, one of latent attention, a dense layer first."""
    tensors = {
        "token_embd.weight": rng.normal(0, 1, (VOCABULARY, HIDDEN)),
        "output.weight": rng.normal(0, HIDDEN**-0.5, (VOCABULARY, HIDDEN)),
        "output_norm.weight": rng.uniform(0.5, 1.5, HIDDEN),
    }
    for i in range(LAYERS):
        tensors |= {f"blk.{i}.{name}": draw(name, shape, rng) for name, shape in shapes(i).items()}
    stored = {name: array.astype(np.float32) for name, array in tensors.items()}
    layers = [
        {name: stored[f"blk.{i}.{name}"].astype(np.float64) for name in shapes(i)} for i in range(LAYERS)
    ]

    def logits(tokens: Floats) -> Floats:
        x = stored["token_embd.weight"][tokens].astype(np.float64)
        for i, w in enumerate(layers):
            mix = latent_attention if i == ATTENDS else delta_attention
            x = x + mix(w, rms(x, w["attn_norm.weight"]))
            x = x + feed_forward(w, rms(x, w["ffn_norm.weight"]))
        made: Floats = rms(x, stored["output_norm.weight"]) @ stored["output.weight"].T
        return made.astype(np.float32)

    keys = {
        "context_length": CONTEXT,
        "embedding_length": HIDDEN,
        "block_count": LAYERS,
        "feed_forward_length": FEED_FORWARD,
        "attention.head_count": HEADS,
        "attention.head_count_kv": [int(i == ATTENDS) for i in range(LAYERS)],
        "attention.layer_norm_rms_epsilon": EPSILON,
        "attention.kv_lora_rank": RANK,
        "attention.key_length": RANK + ROPE,
        "attention.value_length": RANK,
        "attention.key_length_mla": NOPE + ROPE,
        "attention.value_length_mla": VALUE,
        "rope.dimension_count": ROPE,
        "ssm.conv_kernel": KERNEL,
        "kda.head_dim": HEAD,
        "leading_dense_block_count": 1,
        "expert_count": N_EXPERT,
        "expert_used_count": USED,
        "expert_shared_count": 1,
        "expert_feed_forward_length": EXPERT,
        "expert_weights_scale": SCALE,
        "expert_gating_func": 2,
    }
    for name in stored:  # further axes, as llama.cpp's converter writes them
        if "conv1d" in name:
            stored[name] = stored[name].reshape(1, WIDTH, 1, KERNEL)
        if name.endswith("ssm_a"):
            stored[name] = stored[name].reshape(1, 1, HEADS, 1)
    return Made("kimi-linear", keys, stored, logits)


CONFIG = {
    "model_type": "kimi_linear",
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": FEED_FORWARD,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "rms_norm_eps": EPSILON,
    "model_max_length": CONTEXT,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "qk_nope_head_dim": NOPE,
    "qk_rope_head_dim": ROPE,
    "v_head_dim": VALUE,
    "kv_lora_rank": RANK,
    "q_lora_rank": None,
    "mla_use_nope": True,
    "linear_attn_config": {
        "full_attn_layers": [ATTENDS + 1],
        "kda_layers": [i + 1 for i in range(LAYERS) if i != ATTENDS],
        "head_dim": HEAD,
        "num_heads": HEADS,
        "short_conv_kernel_size": KERNEL,
    },
    "first_k_dense_replace": 1,
    "num_experts": N_EXPERT,
    "num_experts_per_token": USED,
    "num_shared_experts": 1,
    "moe_intermediate_size": EXPERT,
    "moe_router_activation_func": "sigmoid",
    "moe_renormalize": True,
    "routed_scaling_factor": SCALE,
    "num_expert_group": 1,
    "topk_group": 1,
}
NAMES = {  # of a layer's tensors, in the file and in a folder of the publisher
    "attn_norm.weight": "input_layernorm.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "attn_kv_a_mqa.weight": "self_attn.kv_a_proj_with_mqa.weight",
    "attn_kv_a_norm.weight": "self_attn.kv_a_layernorm.weight",
    "ssm_beta.weight": "self_attn.b_proj.weight",
    "ssm_norm.weight": "self_attn.o_norm.weight",
    "ssm_a": "self_attn.A_log",
    "ssm_dt.bias": "self_attn.dt_bias",
    "ffn_gate_inp.weight": "block_sparse_moe.gate.weight",
    "exp_probs_b.bias": "block_sparse_moe.gate.e_score_correction_bias",
    **{f"attn_{x}.weight": f"self_attn.{x}_proj.weight" for x in "qkv"},
    **{f"ssm_conv1d_{x}.weight": f"self_attn.{x}_conv1d.weight" for x in "qkv"},
    **{f"ssm_{x}_{y}.weight": f"self_attn.{x}_{y}_proj.weight" for x in "fg" for y in "ab"},
    **{f"ffn_{x}.weight": f"mlp.{x}_proj.weight" for x in ("gate", "up", "down")},
    **{
        f"ffn_{x}_shexp.weight": f"block_sparse_moe.shared_experts.{x}_proj.weight"
        for x in ("gate", "up", "down")
    },
}
EXPERTS = {"ffn_gate_exps.weight": "w1", "ffn_up_exps.weight": "w3", "ffn_down_exps.weight": "w2"}


def in_folder(name: str, array: Floats) -> dict[str, Floats]:
    """A tensor of the file by the names, and in the layout, of a folder."""
    whole = {"token_embd": "model.embed_tokens", "output": "lm_head", "output_norm": "model.norm"}
    if not name.startswith("blk."):
        return {f"{whole[name.removesuffix('.weight')]}.weight": array}
    _, layer, rest = name.split(".", 2)
    place = f"model.layers.{layer}."
    if rest in EXPERTS:
        at = f"{place}block_sparse_moe.experts"
        return {f"{at}.{e}.{EXPERTS[rest]}.weight": one for e, one in enumerate(array)}
    if rest == "ssm_a":
        array = np.log(-array).reshape(1, 1, HEADS, 1)
    if "conv1d" in rest:
        array = array.reshape(WIDTH, 1, KERNEL)
    return {place + NAMES[rest]: array}


def write_folder(made: Made, tokens: Floats) -> None:
    """Write tests/data/folders/kimi-linear."""
    folder, tensors = FOLDERS / "kimi-linear", dict(made.tensors)
    folder.mkdir(exist_ok=True)
    k, v = (tensors.pop(f"blk.{ATTENDS}.attn_{x}_b.weight") for x in "kv")
    both = np.concatenate((k.swapaxes(1, 2), v), axis=1).reshape(-1, RANK)
    found = {f"model.layers.{ATTENDS}.self_attn.kv_b_proj.weight": both}
    for name, array in tensors.items():
        found |= in_folder(name, array)
    save_file({name: np.ascontiguousarray(a) for name, a in found.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=1))
    np.savez_compressed(folder / "answers.npz", tokens=tokens, logits=made.logits(tokens))


if __name__ == "__main__":
    rng = np.random.default_rng(zlib.crc32(b"kimi-linear"))
    write_folder(kimi_linear(rng), rng.integers(0, VOCABULARY, 48))

CASES: dict[str, Case] = {"kimi-linear": kimi_linear}
