"""Tiny RWKV 7 models. Transformers has no class of them: this is the paper's recurrence in NumPy, float64.

Run as a program, it writes the folder of tests/data/folders.

RWKV-7 "Goose" with Expressive Dynamic State Evolution (arXiv 2503.14456), section 4 and appendix; names and
layouts of the file after llama.cpp, which is compared by check_xllamacpp.py (the large case: llama.cpp's
kernels need heads of 64).
"""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

sys.path.insert(0, str(Path(__file__).parent.parent))

from tiny.base import CONTEXT, VOCABULARY, Case, Floats, Made

FOLDERS = Path(__file__).parents[2] / "tests" / "data" / "folders"
EPSILON = 2.0**-9
HEAD_EPSILON = 64e-5


@dataclass(frozen=True)
class Sizes:
    """The sizes of a model; a gate of rank 0 is none."""

    hidden: int = 32
    head: int = 8
    layers: int = 3
    feed_forward: int = 40
    decay: int = 12
    rate: int = 20
    value: int = 16
    gate: int = 24
    head_eps: float = HEAD_EPSILON  # files do not say it; folders do
    is_plain: bool = False  # ARWKV: a gated feed-forward, RMS norms, no norm of heads


def sigmoid(x: Floats) -> Floats:
    """1 / (1 + e^−x)."""
    out: Floats = 1 / (1 + np.exp(-x))
    return out


def layer_norm(x: Floats, weight: Floats, bias: Floats, eps: float = EPSILON) -> Floats:
    """A layer norm along the last axis."""
    x = x - x.mean(-1, keepdims=True)
    out: Floats = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight + bias
    return out


def norm(w: dict[str, Floats], name: str, x: Floats) -> Floats:
    """A norm with a bias is a layer norm, one without an RMS norm."""
    weight, bias = w[f"{name}.weight"], w.get(f"{name}.bias")
    if bias is not None:
        return layer_norm(x, weight, bias)
    out: Floats = x / np.sqrt((x * x).mean(-1, keepdims=True) + EPSILON) * weight
    return out


def lerp(x: Floats, share: Floats) -> Floats:
    """Each row moved towards the one before it."""
    before = np.concatenate((np.zeros_like(x[:1]), x[:-1]))
    return x + (before - x) * share


def time_mix(s: Sizes, w: dict[str, Floats], x: Floats, first: list[Floats]) -> Floats:
    """S = S (diag(w) − κᵀ (a ⊙ κ)) + vᵀ k for each token, o = S r; `first`: the values of the first layer."""
    n, heads = len(x), (s.hidden // s.head, s.head)
    shares = dict(zip("rwkvag", w["time_mix_lerp_fused.weight"].reshape(-1, s.hidden), strict=False))

    def matrix(name: str, y: Floats) -> Floats:
        out: Floats = y @ w[f"time_mix_{name}.weight"].T
        return out

    def narrow(name: str, inner: Callable[[Floats], Floats] = lambda y: y) -> Floats:
        return matrix(f"{name}2", inner(matrix(f"{name}1", lerp(x, shares[name]))))

    def vector(name: str) -> Floats:
        return w[f"time_mix_{name}.weight"]

    r = matrix("receptance", lerp(x, shares["r"])).reshape(n, *heads)
    k = matrix("key", lerp(x, shares["k"]))
    v = matrix("value", lerp(x, shares["v"]))
    decay = np.exp(-np.exp(-0.5) * sigmoid(vector("w0") + narrow("w", np.tanh))).reshape(n, *heads)
    rate = sigmoid(vector("a0") + narrow("a"))
    if first:
        v = v + (first[0] - v) * sigmoid(vector("v0") + narrow("v"))
    else:
        first.append(v)
    removed = (k * vector("k_k")).reshape(n, *heads)
    removed = removed / np.linalg.norm(removed, axis=-1, keepdims=True)
    k = (k * (1 + (rate - 1) * vector("k_a"))).reshape(n, *heads)
    v, rate = v.reshape(n, *heads), rate.reshape(n, *heads)
    out, state = np.empty((n, *heads)), np.zeros((*heads, s.head))  # [heads, values, keys]
    for t in range(n):
        for h in range(heads[0]):
            kappa = removed[t, h][:, None]
            change = np.diag(decay[t, h]) - kappa @ (rate[t, h][:, None] * kappa).T
            state[h] = state[h] @ change + v[t, h][:, None] @ k[t, h][None]
            out[t, h] = state[h] @ r[t, h]
    if "time_mix_ln.weight" in w:
        weight, bias = (w[f"time_mix_ln.{kind}"].reshape(heads) for kind in ("weight", "bias"))
        out = layer_norm(out, weight, bias, s.head_eps)
    out = out + (r * k * vector("r_k").reshape(heads)).sum(-1, keepdims=True) * v
    out = out.reshape(n, -1)
    return matrix("output", out * narrow("g", sigmoid) if s.gate else out)


def feed_forward(w: dict[str, Floats], x: Floats) -> Floats:
    """Channel mixing, or a gated one."""
    if "channel_mix_key.weight" in w:
        mixed = lerp(x, w["channel_mix_lerp_k.weight"].reshape(-1))
        return (
            np.square(np.maximum(mixed @ w["channel_mix_key.weight"].T, 0)) @ w["channel_mix_value.weight"].T
        )
    gate, up = x @ w["ffn_gate.weight"].T, x @ w["ffn_up.weight"].T
    return (gate * sigmoid(gate) * up) @ w["ffn_down.weight"].T


def shapes(s: Sizes, layer: int) -> dict[str, tuple[int, ...]]:
    """The tensors of a layer."""
    n, wide = s.hidden, (s.feed_forward, s.hidden)
    # llama.cpp wants those of values in the first layer too, of the rank of rates, and reads none of them.
    ranks = {"w": s.decay, "a": s.rate, "v": s.value if layer else s.rate, "g": s.gate}
    found: dict[str, tuple[int, ...]] = {}
    for name, rank in ranks.items():
        if rank:
            found |= {f"time_mix_{name}1.weight": (rank, n), f"time_mix_{name}2.weight": (n, rank)}
    found |= {f"time_mix_{name}.weight": (n,) for name in ("w0", "a0", "v0", "k_k", "k_a", "r_k")}
    found |= {f"time_mix_{name}.weight": (n, n) for name in ("receptance", "key", "value", "output")}
    found["time_mix_lerp_fused.weight"] = (6 if s.gate else 5, 1, 1, n)
    if s.is_plain:
        found |= {f"ffn_{name}.weight": wide for name in ("gate", "up")}
        found["ffn_down.weight"] = wide[::-1]
        return found | {f"{name}.weight": (n,) for name in ("attn_norm", "ffn_norm")}
    found |= {"channel_mix_key.weight": wide, "channel_mix_value.weight": wide[::-1]}
    found["channel_mix_lerp_k.weight"] = (n,)
    names = ("attn_norm", "attn_norm_2", "time_mix_ln")
    return found | {f"{name}.{kind}": (n,) for name in names for kind in ("weight", "bias")}


def draw(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> Floats:
    """Random numbers for a tensor; decays for which a state lasts some ten tokens."""
    last = name.rpartition(".")[0].rpartition("time_mix_")[2]
    if ("norm" in last and name.endswith("weight")) or last in ("ln", "k_k", "k_a"):
        return rng.uniform(0.5, 1.5, shape) if name.endswith("weight") else rng.normal(0, 0.5, shape)
    if "lerp" in name:
        return rng.uniform(0, 1, shape)
    if last == "w0":
        return rng.uniform(-5, 0, shape)
    if len(shape) == 1:
        return rng.normal(0, 0.5, shape)
    return rng.normal(0, shape[-1] ** -0.5, shape)


def made(architecture: str, s: Sizes, rng: np.random.Generator) -> Made:
    """A model of those sizes."""
    wholes = ("output_norm",) if s.is_plain else ("output_norm", "token_embd_norm")
    kinds = ("weight",) if s.is_plain else ("weight", "bias")
    tensors = {
        "token_embd.weight": rng.normal(0, 1, (VOCABULARY, s.hidden)),
        "output.weight": rng.normal(0, s.hidden**-0.5, (VOCABULARY, s.hidden)),
        **{f"{name}.{kind}": draw(f"{name}.{kind}", (s.hidden,), rng) for name in wholes for kind in kinds},
    }
    for i in range(s.layers):
        tensors |= {f"blk.{i}.{name}": draw(name, shape, rng) for name, shape in shapes(s, i).items()}
    stored = {name: array.astype(np.float32) for name, array in tensors.items()}
    exact = {name: array.astype(np.float64) for name, array in stored.items()}
    layers = [{name: exact[f"blk.{i}.{name}"] for name in shapes(s, i)} for i in range(s.layers)]

    def logits(tokens: Floats) -> Floats:
        x, first = exact["token_embd.weight"][tokens], list[Floats]()
        if not s.is_plain:
            x = norm(exact, "token_embd_norm", x)
        for w in layers:
            x = x + time_mix(s, w, norm(w, "attn_norm", x), first)
            x = x + feed_forward(w, norm(w, "ffn_norm" if s.is_plain else "attn_norm_2", x))
        found: Floats = norm(exact, "output_norm", x) @ exact["output.weight"].T
        return found.astype(np.float32)

    eps = "attention.layer_norm_rms_epsilon" if s.is_plain else "attention.layer_norm_epsilon"
    keys = {
        "context_length": CONTEXT,
        "embedding_length": s.hidden,
        "block_count": s.layers,
        "feed_forward_length": s.feed_forward,
        "attention.head_count": 0,
        eps: EPSILON,
        "wkv.head_size": s.head,
        "attention.decay_lora_rank": s.decay,
        "attention.iclr_lora_rank": s.rate,
        "attention.value_residual_mix_lora_rank": s.value,
        "attention.gate_lora_rank": s.gate,
    }
    if s.is_plain:
        keys["token_shift_count"] = 1
    return Made(architecture, keys, stored, logits)


LARGE = {"hidden": 128, "head": 64, "decay": 32, "rate": 32, "value": 32, "feed_forward": 96}
CASES: dict[str, Case] = {
    "rwkv7": lambda rng: made("rwkv7", Sizes(), rng),
    # Heads of more values than a vector has, and a rest; no gate.
    "arwkv7": lambda rng: made("arwkv7", Sizes(hidden=40, head=20, gate=0, is_plain=True), rng),
    "rwkv7-large": lambda rng: made("rwkv7", Sizes(gate=32, **LARGE), rng),
    "arwkv7-large": lambda rng: made("arwkv7", Sizes(gate=0, is_plain=True, **LARGE), rng),
}


# The folder, as the FLA library writes it (model_type "rwkv7").


def config(s: Sizes) -> dict[str, object]:
    """The settings of a folder."""
    return {
        "model_type": "rwkv7",
        "architectures": ["RWKV7ForCausalLM"],
        "attn": None,
        "attn_mode": "chunk",
        "vocab_size": VOCABULARY,
        "hidden_size": s.hidden,
        "intermediate_size": s.feed_forward,
        "hidden_ratio": 4.0,
        "hidden_act": "sqrelu",
        "num_hidden_layers": s.layers,
        "num_heads": None,
        "head_dim": s.head,
        "decay_low_rank_dim": s.decay,
        "a_low_rank_dim": s.rate,
        "v_low_rank_dim": s.value,
        "gate_low_rank_dim": s.gate,
        "norm_bias": True,
        "norm_eps": EPSILON,
        "norm_first": True,
        "max_position_embeddings": CONTEXT,
        "tie_word_embeddings": False,
    }


NAMES = {  # of a layer's tensors, in the file and in a folder
    **{
        f"{a}.{kind}": f"{b}.{kind}"
        for kind in ("weight", "bias")
        for a, b in (("attn_norm", "attn_norm"), ("attn_norm_2", "ffn_norm"), ("time_mix_ln", "attn.g_norm"))
    },
    **{
        f"time_mix_{a}.weight": f"attn.{b}_proj.weight"
        for a, b in (("receptance", "r"), ("key", "k"), ("value", "v"), ("output", "o"))
    },
    **{
        f"time_mix_{x}{i}.weight": f"attn.{x}_lora.lora.{j}"
        for x in "wavg"
        for i, j in ((0, "2.bias"), (1, "0.weight"), (2, "2.weight"))
    },
    **{f"time_mix_{x}.weight": f"attn.{x}" for x in ("k_k", "k_a", "r_k")},
    "channel_mix_key.weight": "ffn.key.weight",
    "channel_mix_value.weight": "ffn.value.weight",
    "channel_mix_lerp_k.weight": "ffn.x_k",
}
WHOLE = {
    "token_embd.weight": "model.embeddings.weight",
    "output.weight": "lm_head.weight",
    **{f"output_norm.{kind}": f"model.norm.{kind}" for kind in ("weight", "bias")},
    **{f"token_embd_norm.{kind}": f"model.layers.0.pre_norm.{kind}" for kind in ("weight", "bias")},
}


def in_folder(s: Sizes, name: str, array: Floats) -> dict[str, Floats]:
    """A tensor of the file by the names, and in the layout, of a folder."""
    if not name.startswith("blk."):
        return {WHOLE[name]: array}
    _, layer, rest = name.split(".", 2)
    place = f"model.layers.{layer}."
    if rest.startswith("time_mix_lerp"):
        return {f"{place}attn.x_{x}": share[None] for x, share in zip("rwkvag", array[:, 0], strict=True)}
    if layer == "0" and rest.startswith("time_mix_v") and rest[10].isdigit():
        return {}  # of the first layer's values: nothing reads them
    if rest == "time_mix_r_k.weight":
        array = array.reshape(-1, s.head)
    return {place + NAMES[rest]: array}


def write_folder(s: Sizes, model: Made, tokens: Floats) -> None:
    """Write tests/data/folders/rwkv7."""
    folder, found = FOLDERS / "rwkv7", dict[str, Floats]()
    folder.mkdir(exist_ok=True)
    for name, array in model.tensors.items():
        found |= in_folder(s, name, array)
    save_file({name: np.ascontiguousarray(a) for name, a in found.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config(s), indent=1))
    np.savez_compressed(folder / "answers.npz", tokens=tokens, logits=model.logits(tokens))


if __name__ == "__main__":
    rng = np.random.default_rng(zlib.crc32(b"rwkv7"))
    sizes = Sizes(head_eps=Sizes.head * EPSILON)
    write_folder(sizes, made("rwkv7", sizes, rng), rng.integers(0, VOCABULARY, 48))
