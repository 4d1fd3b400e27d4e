"""LoRA: for a matrix W two narrow ones, so that W x becomes W x + scale × B (A x)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from struct import pack

import numpy as np
from numpy.typing import NDArray

from stretto.errors import ModelError

Floats = NDArray[np.float32]
Shape = tuple[int, ...]
Read = Callable[[], Floats]

MAX_RANK = 4096
# Matrices that rows are multiplied by as they are. Experts' and embeddings are looked up or chosen by row.
SUPPORTED = re.compile(
    r"output\.weight|blk\.[0-9]+\."
    r"(?:attn_(?:q|k|v|qkv|output|gate|q_a|q_b|kv_a_mqa)|ffn_(?:gate|up|down)(?:_shexp)?|ffn_gate_inp|"
    r"ssm_(?:in|out|alpha|beta|ba)|shortconv\.(?:in|out)_proj)\.weight"
)


@dataclass(frozen=True)
class Target:
    """The model that an adapter is to change, as far as its reader has to know it."""

    architecture: str
    shapes: Mapping[str, Shape]  # of its tensors, by the names of a GGUF file
    head_size: int  # of queries and keys
    n_layer: int
    n_embd: int

    def check(self, name: str, a: Shape, b: Shape, path: Path) -> None:
        """Raise `ModelError` unless narrow matrices of these shapes can change the matrix `name`."""
        where = f"tensor {name!r}"
        if name not in self.shapes:
            why = "this model has no such matrix; is the adapter for another model?"
            if name == "output.weight":
                why = "the output of this model is its embedding matrix, which adapters cannot change"
            raise ModelError(why, path=path, field=where)
        if not SUPPORTED.fullmatch(name):
            raise ModelError(
                "changes of this tensor are not supported, only of matrices of attention, feed-forward and "
                "output; train the adapter without it, or merge it into the model",
                path=path,
                field=where,
            )
        wanted = self.shapes[name]
        if len(a) != 2 or len(b) != 2 or a[0] != b[1] or (b[0], a[1]) != wanted:
            raise ModelError(
                f"lora_a of {describe_shape(a)} and lora_b of {describe_shape(b)} do not make the "
                f"{describe_shape(wanted)} that the matrix has in this model; is the adapter for "
                "another model?",
                path=path,
                field=where,
            )
        if not 1 <= a[0] <= MAX_RANK:
            raise ModelError(f"the rank is {a[0]}; 1 to {MAX_RANK} is possible", path=path, field=where)


@dataclass(frozen=True)
class Pair:
    """The change of one matrix: scale × b a."""

    a: Floats  # float32[rank, columns]
    b: Floats  # float32[rows, rank]
    scale: float = 1.0

    @property
    def rank(self) -> int:
        """The number of rows of a."""
        return len(self.a)

    def rows(self, first: int, last: int) -> Pair:
        """The change of some rows of the matrix."""
        return Pair(self.a, self.b[first:last], self.scale)

    def delta(self) -> Floats:
        """float32[rows, columns]: what is added to the matrix."""
        return (self.b @ self.a) * np.float32(self.scale)


@dataclass(frozen=True)
class LoRA:
    """An adapter: the changes of a model's matrices, by their names in a GGUF file.

    `vectors` are added to the residual stream at the end of layers (weights/adapters/steering.py).
    """

    path: Path
    pairs: dict[str, Pair]
    fingerprint: str  # of all its numbers
    vectors: dict[int, Floats] = field(default_factory=dict)

    @property
    def rank(self) -> int:
        """The largest rank of its matrices."""
        return max((pair.rank for pair in self.pairs.values()), default=0)

    @property
    def nbytes(self) -> int:
        """What its numbers take as float32."""
        narrow = sum(pair.a.nbytes + pair.b.nbytes for pair in self.pairs.values())
        return narrow + sum(vector.nbytes for vector in self.vectors.values())


def make_lora(path: Path, parts: Mapping[str, tuple[Read, Read, float]]) -> LoRA:
    """An adapter of checked shapes: for each name what reads a, what reads b, and a scale."""
    if not parts:
        raise ModelError("holds no changes of matrices (lora_a and lora_b)", path=path)
    pairs: dict[str, Pair] = {}
    for name in sorted(parts):
        read_a, read_b, scale = parts[name]
        a, b = _finite(read_a(), name, path), _finite(read_b(), name, path)
        pairs[name] = Pair(a, b, float(np.float32(scale)))
    return LoRA(path, pairs, make_fingerprint(pairs, {}))


def make_fingerprint(pairs: Mapping[str, Pair], vectors: Mapping[int, Floats]) -> str:
    """A hash of all numbers of an adapter, 64 hexadecimal digits."""
    digest = sha256()
    for name in sorted(pairs):
        pair = pairs[name]
        digest.update(name.encode() + pack("<QQQf", *pair.b.shape, pair.a.shape[1], pair.scale))
        digest.update(pair.a.data)
        digest.update(pair.b.data)
    for layer in sorted(vectors):
        digest.update(pack("<Q", layer))
        digest.update(vectors[layer].data)
    return digest.hexdigest()


def describe_shape(shape: Shape) -> str:
    """A shape in words."""
    return " × ".join(map(str, shape)) or "one number"


def _finite(numbers: Floats, name: str, path: Path) -> Floats:
    if not np.isfinite(numbers).all():
        raise ModelError("holds numbers that are infinite or NaN", path=path, field=f"tensor {name!r}")
    return np.ascontiguousarray(numbers, np.float32)
