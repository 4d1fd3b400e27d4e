"""Hugging Face folders as GGUF files, as llama.cpp's own converter writes them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stretto.errors import InvalidRequest, ModelError
from stretto.quantize.imatrix import ImportanceMatrix
from stretto.quantize.mixes import find_mix
from stretto.quantize.model import Progress, Written, read_importance, read_overrides, write_model
from stretto.quantize.vocabulary import tokenizer_keys
from stretto.weights.folder import Folder
from stretto.weights.formats import Format
from stretto.weights.gguf import GGUF


def convert_folder(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    mix: str | None = None,
    *,
    imatrix: str | os.PathLike[str] | ImportanceMatrix | None = None,
    tensor_types: Sequence[tuple[str, str]] = (),
    pure: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Written:
    """Write a Hugging Face folder as a GGUF file with the formats of a mix; by itself bf16 or f16, as it is.

    >>> convert_folder("Qwen3-0.6B", "qwen3-0.6b-q4_k_m.gguf", "q4_k_m")
    """
    path = Path(source).expanduser()
    if not path.is_dir():
        raise InvalidRequest(
            f"{path} is no folder; stretto quantize is for GGUF files",
            param="source",
            value=str(path),
        )
    with Folder(path) as file:
        chosen = find_mix(mix or _own_mix(file))
        return write_model(
            file,
            target,
            chosen,
            _metadata(file, path),
            plain_as_float32=True,
            imatrix=read_importance(imatrix),
            overrides=read_overrides(tensor_types),
            pure=pure,
            allow_requantize=True,  # nothing in a folder is quantised, but what its authors did
            threads=threads,
            progress=progress,
        )


def _own_mix(file: GGUF) -> str:
    """The format of a folder's largest tensor, if files have it: else f16."""
    largest = max(file.tensors.values(), key=lambda tensor: tensor.nbytes)
    return "bf16" if largest.format is Format.BF16 else "f16"


def _metadata(file: GGUF, path: Path) -> dict[str, Any]:
    """The folder's metadata in the types that llama.cpp reads, with its tokenizer."""
    if "token_embd.weight" not in file.tensors:
        raise ModelError("has no embeddings", path=path, field="tensor 'token_embd.weight'")
    values = {key: _narrow(value) for key, value in file.metadata.items()}
    values["general.type"] = "model"
    return values | tokenizer_keys(path, file.tensors["token_embd.weight"].shape[0])


def _narrow(value: Any) -> Any:
    """Arrays of 64 bits with 32."""
    if isinstance(value, np.ndarray) and value.dtype == np.int64:
        return value.astype(np.int32)
    return value.astype(np.float32) if isinstance(value, np.ndarray) and value.dtype == np.float64 else value
