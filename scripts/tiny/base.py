"""What the makers of tiny models share.

A case is a function that gets a random generator and returns a `Made`: the file's metadata and tensors as
llama.cpp's converter would write them, and transformers' logits for any tokens. Each model has every
optional piece of its architecture switched on, and no constant at its usual value, so that a decoder which
ignores what a file says cannot pass. Weights are such that activations and logits have about unit variance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

VOCABULARY, CONTEXT = 96, 128
LENGTHS = 48, 33  # of the two texts: beyond the original context of every scaled rope, and every window

Floats = np.ndarray


@dataclass(frozen=True)
class Made:
    """One tiny model: what its file holds, and what transformers computes with it."""

    architecture: str
    metadata: dict[str, Any]  # without "general.architecture"; keys without the architecture's prefix
    tensors: dict[str, Floats]  # matrices and vectors as float32, by the names of the file
    logits: Callable[[Floats], Floats]  # int64[n] tokens → float32[n, n_vocab]


Case = Callable[[np.random.Generator], Made]


def randomize(
    model: torch.nn.Module,
    rng: np.random.Generator,
    special: Callable[[str, tuple[int, ...], np.random.Generator], Floats | None] | None = None,
    norms_at_zero: Callable[[str], bool] = lambda name: False,
) -> None:
    """Set every parameter of `model` from `rng`.

    Norms lie around one (around zero where `norms_at_zero(name)`: the model adds one itself), biases and
    vectors around zero, matrices have the variance that keeps activations at one. `special` may differ.
    """
    for name, parameter in model.named_parameters():
        shape = tuple(parameter.shape)
        values = special(name, shape, rng) if special else None
        if values is None:
            if "norm" in name and len(shape) == 1 and name.endswith("weight"):
                # On a grid that 1 + w shares, so that either way the file has what the model has.
                values = np.round(rng.uniform(-0.5, 0.5, shape) * 512) / 512
                values = values + (0 if norms_at_zero(name) else 1)
            elif len(shape) == 1:
                values = rng.normal(0, 0.5, shape)
            else:
                gain = 1.4 if "q_proj" in name or "k_proj" in name else 1.0
                values = rng.normal(0, gain * shape[-1] ** -0.5, shape)
        parameter.data = torch.from_numpy(np.asarray(values, np.float32))
    if hasattr(model, "tie_weights"):
        model.tie_weights()


def run(model: torch.nn.Module) -> Callable[[Floats], Floats]:
    """Transformers' logits as a function of the tokens."""

    def logits(tokens: Floats) -> Floats:
        with torch.no_grad():
            out: Floats = model(torch.from_numpy(tokens)[None], use_cache=False).logits[0].numpy()
        return out

    return logits


def arrays(model: torch.nn.Module) -> dict[str, Floats]:
    """The parameters of a model by their names in transformers, float32; tied ones once."""
    return {name: values.detach().numpy().astype(np.float32) for name, values in model.named_parameters()}


def adjacent(matrix: Floats, head_size: int) -> Floats:
    """Rows reordered within each head: transformers rotates (i, i + d/2), llama files (2i, 2i + 1)."""
    halves = matrix.reshape(-1, 2, head_size // 2, *matrix.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(matrix.shape)
