"""Steering vectors, added to the residual stream at the end of layers; files are llama.cpp's control vectors.

A file has `general.architecture` "controlvector" and tensors `direction.N`, one for each layer N from 0 on.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from stretto.errors import InvalidRequest, ModelError
from stretto.weights.adapters.lora import Floats, LoRA, Target, make_fingerprint
from stretto.weights.formats import READABLE
from stretto.weights.gguf import GGUF
from stretto.weights.writer import write_gguf

ARCHITECTURE = "controlvector"
HINT = "controlvector.model_hint"
DIRECTION = re.compile(r"direction\.([0-9]{1,4})")


def read_steering(file: GGUF, target: Target) -> LoRA:
    """The vectors of a file, each checked against the model's layers before it is read."""
    path, hint = file.path, file.metadata.get(HINT)
    if hint is not None and hint != target.architecture:
        raise ModelError(
            f"the vectors are for models of the architecture {hint!r:.60}, and this one is "
            f"{target.architecture!r}",
            path=path,
            field=HINT,
        )
    vectors: dict[int, Floats] = {}
    for name, tensor in file.tensors.items():
        field, match = f"tensor {name!r}", DIRECTION.fullmatch(name)
        if match is None or int(match[1]) >= target.n_layer:
            raise ModelError(
                f"is no vector of a layer: direction.0 to direction.{target.n_layer - 1} are possible",
                path=path,
                field=field,
            )
        if tensor.shape != (target.n_embd,) or tensor.format not in READABLE:
            raise ModelError(
                f"{tensor.format.name} of {tensor.shape}, and layers of this model have {target.n_embd} "
                "numbers; are the vectors for another model?",
                path=path,
                field=field,
            )
        vectors[int(match[1])] = tensor.dequantize()
    return make_steering(vectors, target, path)


def make_steering(vectors: Mapping[int, Any], target: Target, path: Path = Path("memory")) -> LoRA:
    """Vectors by layer as an adapter."""
    made: dict[int, Floats] = {}
    for layer, numbers in vectors.items():
        if type(layer) is not int or not 0 <= layer < target.n_layer:
            raise InvalidRequest(
                f"a layer must be from 0 to {target.n_layer - 1}, not {layer!r:.40}", param="vectors"
            )
        vector = np.ascontiguousarray(numbers, np.float32)
        if vector.shape != (target.n_embd,) or not np.isfinite(vector).all():
            raise InvalidRequest(
                f"the vector of layer {layer} must be {target.n_embd} finite numbers, not {vector.shape}",
                param="vectors",
            )
        made[layer] = vector
    if not made:
        raise InvalidRequest("no vector of any layer is given", param="vectors")
    return LoRA(path, {}, make_fingerprint({}, made), made)


def write_steering(path: str | os.PathLike[str], vectors: Mapping[int, Any], target: Target) -> None:
    """Write vectors by layer as a file; `path` appears when all of it is on disk."""
    made = make_steering(vectors, target).vectors
    head = {"general.architecture": ARCHITECTURE, HINT: target.architecture}
    count = {f"{ARCHITECTURE}.layer_count": len(made)}
    write_gguf(path, {**head, **count}, {f"direction.{layer}": made[layer] for layer in sorted(made)})
