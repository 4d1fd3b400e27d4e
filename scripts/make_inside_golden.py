"""What transformers' forward hooks see within tiny models: tests/data/golden/inside.npz.

    python scripts/make_inside_golden.py

Needs torch and transformers. For each folder of tests/data/folders that is named here, and one text: the
values at sites of the first and the last layer, float32, of the text's last tokens. Hooks take what a module
is given or gives: the layers themselves, their attention or recurrent mixers, their feed-forwards.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM

DATA = Path(__file__).parent.parent / "tests" / "data"
TOKENS = [5, 17, 9, 33, 2, 40, 11, 3, 21, 8]
KEPT = 4  # of the last tokens
OUT = "o_proj", "dense", "c_proj", "out_proj"
CASES = {  # folder: names of a layer's mixer, of its feed-forward
    "llama": ("self_attn", "mlp"),
    "mistral": ("self_attn", "mlp"),
    "qwen2": ("self_attn", "mlp"),
    "qwen3": ("self_attn", "mlp"),
    "gemma3": ("self_attn", "mlp"),
    "phi3": ("self_attn", "mlp"),
    "olmo": ("self_attn", "mlp"),
    "gpt2": ("attn", "mlp"),
    "gptneox": ("attention", "mlp"),
    "falcon": ("self_attention", "mlp"),
    "stablelm": ("self_attn", "mlp"),
    "starcoder2-window": ("self_attn", "mlp"),
    "mixtral": ("self_attn", "mlp"),
    "qwen3moe": ("self_attn", "mlp"),
    "olmoe": ("self_attn", "mlp"),
    "mamba2": ("mixer", ""),
    "lfm2": ("", "feed_forward"),
}


def first_of(value: Any) -> torch.Tensor:
    """The hidden states among what a module gives."""
    return value[0] if isinstance(value, tuple) else value


def layers_of(model: Any) -> Any:
    """The list of the model's layers."""
    for name in ("layers", "h"):
        for inner in (model.base_model, getattr(model.base_model, "backbone", None)):
            if inner is not None and hasattr(inner, name):
                return getattr(inner, name)
    raise SystemExit(f"where are the layers of {type(model).__name__}?")


def seen(folder: Path, mixer: str, feed: str) -> dict[str, np.ndarray]:
    """By site the values of the text's last tokens."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    model.eval()
    found: dict[str, np.ndarray] = {}

    def keep(site: str, value: Any) -> None:
        found[site] = first_of(value).detach().reshape(len(TOKENS), -1)[-KEPT:].numpy().copy()

    layers = layers_of(model)
    for i in (0, len(layers) - 1):
        part = "recurrent" if mixer == "mixer" else "attn"
        layer = layers[i]
        layer.register_forward_hook(lambda _, __, out, i=i: keep(f"layers.{i}.residual", out))
        if mixer:
            module = getattr(layer, mixer)
            module.register_forward_hook(
                lambda _, __, out, i=i, part=part: keep(f"layers.{i}.{part}.out", out)
            )
            outputs = [inner for name, inner in module.named_children() if name in OUT]
            if part == "attn":
                outputs[0].register_forward_hook(
                    lambda _, given, __, i=i: keep(f"layers.{i}.attn.heads", given)
                )
        if feed:
            module = getattr(layer, feed)
            module.register_forward_hook(
                lambda _, given, __, i=i: keep(f"layers.{i}.mlp.in", given) if given else None
            )
            module.register_forward_hook(lambda _, __, out, i=i: keep(f"layers.{i}.mlp.out", out))
    with torch.no_grad():
        model(torch.tensor([TOKENS]))
    return found


def main() -> None:
    """Write the file."""
    arrays: dict[str, np.ndarray] = {"tokens": np.array(TOKENS, np.int32)}
    for name, (mixer, feed) in CASES.items():
        for site, values in seen(DATA / "folders" / name, mixer, feed).items():
            arrays[f"{name}/{site}"] = values
        print(name, len([key for key in arrays if key.startswith(f"{name}/")]), flush=True)
    np.savez_compressed(DATA / "golden" / "inside.npz", **arrays)


if __name__ == "__main__":
    main()
