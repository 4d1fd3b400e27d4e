"""Importance matrices: how strong the input of each column of a matrix is, in the GGUF form of llama.cpp.

    matrix = ImportanceMatrix.read("model-imatrix.gguf")
    matrix.weights("blk.0.ffn_down.weight")      # float32[1, columns], the mean square of each input

For each matrix there are two tensors: `NAME.in_sum2`, the sum of the squares of its inputs, and
`NAME.counts`, of how many rows; a tensor of experts has a row for each of them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stretto.errors import ModelError
from stretto.weights.gguf import GGUF
from stretto.weights.metadata import Strings
from stretto.weights.tensor import Tensor
from stretto.weights.writer import Writable, write_gguf

Floats = NDArray[np.float32]
TYPE = "imatrix"
SUMS, COUNTS = ".in_sum2", ".counts"
DATASETS, CHUNKS, CHUNK_TOKENS = "imatrix.datasets", "imatrix.chunk_count", "imatrix.chunk_size"


@dataclass(frozen=True)
class Inputs:
    """The inputs of a tensor: float32[matrices, columns] sums of squares, float32[matrices] rows."""

    sums: Floats
    counts: Floats


@dataclass(frozen=True)
class ImportanceMatrix:
    """The inputs of a model's matrices, by the names of their tensors, and the text they were measured on."""

    inputs: Mapping[str, Inputs]
    datasets: tuple[str, ...] = ()
    chunks: int = 0
    chunk_tokens: int = 0
    path: str = field(default="", compare=False)

    def weights(self, name: str) -> Floats | None:
        """float32[matrices, columns]: mean squares, of which 1 is the mean; None for an unknown tensor.

        An expert that no token chose has the same weight everywhere.
        """
        found = self.inputs.get(name)
        if found is None:
            return None
        means = found.sums / np.maximum(found.counts, 1)[:, None]
        level = means.mean(axis=1, keepdims=True, dtype=np.float64)
        known = (found.counts[:, None] > 0) & (level > 0)
        scaled = np.divide(means, level, out=np.ones_like(means, np.float64), where=known)
        # A column that was never used may be used one day: it keeps a trace of weight.
        return np.ascontiguousarray(np.clip(scaled, 1e-6, 1e9), np.float32)

    def weights_for(self, tensor: Tensor) -> Floats | None:
        """The weights of a tensor; `ModelError` if they are of another shape."""
        found = self.weights(tensor.name)
        if found is None:
            return None
        matrices = int(np.prod(tensor.shape[:-2])) if len(tensor.shape) > 2 else 1
        if found.shape != (matrices, tensor.shape[-1]):
            raise ModelError(
                f"is for {found.shape[0]} matrices of {found.shape[1]} columns, but the model's tensor has "
                f"{matrices} of {tensor.shape[-1]}; is the importance matrix of another model?",
                path=self.path,
                field=f"tensor {tensor.name + SUMS!r}",
            )
        return found

    @staticmethod
    def read(path: str | os.PathLike[str]) -> ImportanceMatrix:
        """The importance matrix in a file; `ModelError` if it is none, or damaged."""
        with GGUF(path) as file:
            if file.metadata.text("general.type", "") != TYPE:
                raise ModelError(
                    f"is no importance matrix: general.type is not {TYPE!r}; make one with stretto imatrix "
                    "or with llama-imatrix in GGUF form",
                    path=path,
                )
            names = [name.removesuffix(SUMS) for name in file.tensors if name.endswith(SUMS)]
            if not names:
                raise ModelError("has no sums of inputs", path=path)
            datasets = file.metadata.get(DATASETS)
            return ImportanceMatrix(
                {name: _read_inputs(file, name) for name in names},
                tuple(datasets) if isinstance(datasets, Strings) else (),
                file.metadata.integer(CHUNKS, 0),
                file.metadata.integer(CHUNK_TOKENS, 0),
                os.fspath(path),
            )

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write it as llama.cpp does; `path` appears when all of it is on disk."""
        metadata = {
            "general.type": TYPE,
            DATASETS: list(self.datasets) or [""],
            CHUNKS: self.chunks,
            CHUNK_TOKENS: self.chunk_tokens,
        }
        tensors: dict[str, Writable] = {}
        for name, one in sorted(self.inputs.items()):
            tensors[name + SUMS] = np.ascontiguousarray(one.sums, np.float32)
            tensors[name + COUNTS] = np.ascontiguousarray(one.counts.reshape(-1, 1), np.float32)
        write_gguf(Path(path), metadata, tensors)


def _read_inputs(file: GGUF, name: str) -> Inputs:
    sums, counts = file.tensors[name + SUMS], file.tensors.get(name + COUNTS)
    if counts is None:
        raise ModelError("the counts are missing", path=file.path, field=f"tensor {name + COUNTS!r}")
    values = sums.dequantize().reshape(-1, sums.shape[-1])
    rows = counts.dequantize().reshape(-1)
    if len(values) != len(rows):
        raise ModelError(
            f"{len(rows)} counts for {len(values)} sums", path=file.path, field=f"tensor {name + COUNTS!r}"
        )
    for tensor, numbers in ((sums, values), (counts, rows)):
        if not np.isfinite(numbers).all() or (numbers < 0).any():
            raise ModelError(
                "has numbers that are negative or not finite", path=file.path, field=f"tensor {tensor.name!r}"
            )
    return Inputs(values, rows)
