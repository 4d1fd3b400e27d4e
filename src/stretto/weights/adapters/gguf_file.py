"""LoRA adapters in GGUF files, as llama.cpp's convert_lora_to_gguf writes them, and its control vectors."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from stretto.errors import ModelError
from stretto.weights.adapters.lora import LoRA, Read, Target, make_lora
from stretto.weights.adapters.steering import ARCHITECTURE, read_steering
from stretto.weights.formats import READABLE
from stretto.weights.gguf import GGUF
from stretto.weights.tensor import Tensor

A, B = ".lora_a", ".lora_b"
ALPHA = "adapter.lora.alpha"


def read_gguf(path: Path, target: Target) -> LoRA:
    """The adapter in a file; its shapes are checked before any number is read."""
    with GGUF(path) as file:
        if str(file.metadata.get("general.architecture")) == ARCHITECTURE:
            return read_steering(file, target)
        alpha = _checked_head(file, target)
        parts: dict[str, tuple[Read, Read, float]] = {}
        for name in file.tensors:
            base = name.removesuffix(A).removesuffix(B)
            if base == name:
                raise ModelError(
                    "is no change of a matrix (lora_a or lora_b); whole tensors in an adapter are not "
                    "supported",
                    path=path,
                    field=f"tensor {name!r}",
                )
            a, b = (_tensor(file, f"{base}{kind}") for kind in (A, B))
            target.check(base, a.shape, b.shape, path)
            parts[base] = a.dequantize, b.dequantize, alpha / a.shape[0] if alpha else 1.0
        return make_lora(path, parts)


def _checked_head(file: GGUF, target: Target) -> float:
    """The adapter's alpha, of a file that is a LoRA adapter for the architecture."""
    metadata, path = file.metadata, file.path
    if metadata.get("general.type") != "adapter" and "adapter.type" not in metadata:
        raise ModelError("is no adapter; load models with stretto.load", path=path, field="general.type")
    kind = metadata.get("adapter.type")
    if kind != "lora":
        raise ModelError(
            f"adapters of type {kind!r} are not supported, only 'lora'", path=path, field="adapter.type"
        )
    if "adapter.alora.invocation_tokens" in metadata:
        raise ModelError(
            "an activated LoRA, which changes a text from some tokens on only, is not supported",
            path=path,
            field="adapter.alora.invocation_tokens",
        )
    architecture = metadata.get("general.architecture")
    if str(architecture) != target.architecture:
        raise ModelError(
            f"the adapter is for models of the architecture {architecture!r:.60}, and this one is "
            f"{target.architecture!r}",
            path=path,
            field="general.architecture",
        )
    alpha = metadata.get(ALPHA, 0.0)
    if isinstance(alpha, bool) or not isinstance(alpha, (int, float, np.number)) or not abs(alpha) <= 1e6:
        raise ModelError(f"must be a number up to 1e6, not {alpha!r:.60}", path=path, field=ALPHA)
    return float(alpha)


def _tensor(file: GGUF, name: str) -> Tensor:
    tensor = file.tensors.get(name)
    if tensor is None:
        raise ModelError("the other half of a change is missing", path=file.path, field=f"tensor {name!r}")
    if tensor.format not in READABLE:
        raise ModelError(f"{tensor.format.name} is not supported", path=file.path, field=f"tensor {name!r}")
    return tensor
