"""The memory that loading a model needs: its weights as they are in the file, and the KV cache.

    with GGUF("model.gguf") as file:
        need = memory(file)
        need.weights                      # bytes by format: {"Q4_1": 75644928, …}
        need.cache_bytes("f16", 2048)     # bytes, or None if the file does not say enough

A cell of the cache holds K and V of one token in all layers, so the cache grows by the same bytes with each
token. The figures come from the file and may be anything: nothing here divides by one or loops over one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stretto.errors import InvalidRequest, ModelError
from stretto.weights.formats import Format
from stretto.weights.gguf import GGUF
from stretto.weights.metadata import Metadata

CACHE_FORMATS: Mapping[str, Format] = {"f16": Format.F16, "q8": Format.Q8_0, "f32": Format.F32}  # of a CPU
LENGTHS = (512, 2048, 8192)

# Bits of a number in the layout of csrc/weights/packed.h; other formats are as small as in the file.
PACKED_BITS: Mapping[str, float] = {"Q4_K": 4.625, "Q5_K": 5.625, "Q6_K": 6.625, "MXFP4": 4.5}


@dataclass(frozen=True)
class Memory:
    """The bytes that a model needs.

    `rows` are the K and V rows of a cell as (how many, how many numbers in each), empty if unknown;
    `context_length` is what the model was made for, None if the file does not say.
    """

    weights: Mapping[str, int]
    context_length: int | None
    rows: tuple[tuple[int, int], ...]
    state_bytes: int = 0  # of each sequence, in models with recurrent layers

    @property
    def weight_bytes(self) -> int:
        """All weights together."""
        return sum(self.weights.values())

    @property
    def packed_bytes(self) -> int:
        """All weights together, once they are loaded."""
        return sum(packed_bytes(name, nbytes) for name, nbytes in self.weights.items())

    @property
    def lengths(self) -> tuple[int, ...]:
        """The lengths worth showing: the usual ones that fit, then the whole context."""
        if self.context_length is None:
            return LENGTHS
        return (*(length for length in LENGTHS if length < self.context_length), self.context_length)

    def cache_bytes(self, kind: str, length: int) -> int | None:
        """The bytes of a cache of `length` cells of type `kind`; None if the model's shape is not known."""
        if not self.rows:  # a model without attention, or one whose shape is not known
            return 0 if self.state_bytes else None
        fmt = CACHE_FORMATS[kind]
        # Each row is stored in whole blocks of its own.
        return length * sum(count * -(-numbers // fmt.block) * fmt.size for count, numbers in self.rows)


def memory(file: GGUF) -> Memory:
    """The memory that loading `file` needs, as far as its metadata say."""
    weights: dict[str, int] = {}
    for tensor in file.tensors.values():
        weights[tensor.format.name] = weights.get(tensor.format.name, 0) + tensor.nbytes
    arch = file.metadata.get("general.architecture")
    return Memory(
        weights=dict(sorted(weights.items(), key=lambda item: -item[1])),
        context_length=_positive(file.metadata, f"{arch}.context_length"),
        rows=_rows(file.metadata, f"{arch}"),
    )


def packed_bytes(name: str, nbytes: int) -> int:
    """What so many bytes of a file take packed, by the name of their format."""
    if name not in PACKED_BITS:
        return nbytes
    fmt = Format[name]
    return int(nbytes // fmt.size * fmt.block * PACKED_BITS[name] / 8)


def _rows(metadata: Metadata, arch: str) -> tuple[tuple[int, int], ...]:
    """The rows of K and of V in a cell; empty if a key is missing or makes no sense."""
    layers = _positive(metadata, f"{arch}.block_count")
    queries = _heads(metadata, f"{arch}.attention.head_count")
    heads = _heads(metadata, f"{arch}.attention.head_count_kv") or queries
    if layers is None or heads is None:
        return ()
    rows = []
    for key in ("key_length", "value_length"):
        size = _positive(metadata, f"{arch}.attention.{key}")
        if size is None:
            width = _positive(metadata, f"{arch}.embedding_length")
            if width is None or not isinstance(queries, int) or width < queries:
                return ()
            size = width // queries
        if isinstance(heads, int):
            rows.append((layers, heads * size))
        elif len(heads) == layers:
            rows += [(1, count * size) for count in heads]
        else:
            return ()
    return tuple(rows)


def _positive(metadata: Metadata, key: str) -> int | None:
    value = metadata.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _heads(metadata: Metadata, key: str) -> int | tuple[int, ...] | None:
    """A number of heads, one for all layers or one for each; a layer may have none."""
    value = metadata.get(key)
    if isinstance(value, np.ndarray) and value.dtype.kind in "iu" and value.ndim == 1:
        counts = tuple(int(count) for count in value)
        return counts if all(count >= 0 for count in counts) and any(counts) else None
    return _positive(metadata, key)


# Where weights are while a model runs: packed in memory, or in the file.
#
#     placement = choose_placement("auto", memory(file), "f16", 8192, free=16 << 30)
#     placement.repack        # whether they are packed
#     print(placement)        # "weights packed: 13.8 GB of 24.1 GB free"
#
# Packed weights take about as much memory as the file. Weights that stay in the file take only page cache,
# so a model may be larger than memory; what the system evicted is read again when it is used. The KV cache
# has to fit in any case.

SHARED = "shared"
CHOICES = ("auto", True, False, SHARED)
RESERVE_BYTES = 128 << 20  # for activations, threads and Python


@dataclass(frozen=True)
class Placement:
    """The chosen place of the weights, and the numbers it was chosen by; `free_bytes` is None if unknown."""

    repack: bool
    packed_bytes: int
    cache_bytes: int
    free_bytes: int | None
    shared: bool = False  # packed into a file that all processes map

    def __str__(self) -> str:
        free = "" if self.free_bytes is None else f" of {_size(self.free_bytes)} free"
        if self.shared:
            return f"weights packed in a file that processes share: {_size(self.packed_bytes)}"
        if self.repack:
            return f"weights packed: {_size(self.packed_bytes)}{free}"
        return f"weights read from the file: packed they would take {_size(self.packed_bytes)}{free}"


def choose_placement(
    repack: bool | str, need: Memory, kv: str, cells: int, free: int | None, path: Path | None = None
) -> Placement:
    """Choose by free memory, if `repack` is "auto"; raise for what cannot run."""
    cache = need.cache_bytes(kv, cells) or 0
    packed = need.packed_bytes
    if free is None:
        return Placement(repack is not False, packed, cache, None, repack == SHARED)
    room = free - RESERVE_BYTES
    if cache > room:
        raise InvalidRequest(
            f"a KV cache of {cells:,} cells takes {_size(cache)}, and {_size(free)} of memory are free; "
            "ask for fewer cells, or for kv='q8', which takes half as much",
            param="cells",
            value=cells,
        )
    if repack is True and packed + cache > room:
        raise ModelError(
            f"its weights take {_size(packed)} and a KV cache of {cells:,} cells {_size(cache)}, and "
            f"{_size(free)} of memory are free; repack='auto' or repack=False leaves the weights in the file",
            path=path,
        )
    if repack == SHARED:  # the system may evict what it maps
        return Placement(True, packed, cache, free, shared=True)
    return Placement(repack is True or (repack == "auto" and packed + cache <= room), packed, cache, free)


def _size(nbytes: int) -> str:
    """As "1.4 GB", in powers of ten."""
    for unit, factor in (("GB", 10**9), ("MB", 10**6)):
        if nbytes >= factor:
            return f"{nbytes / factor:,.1f} {unit}"
    return f"{nbytes / 1000:,.1f} kB"
