"""Where weights are while a model runs: packed in memory, or in the file.

    placement = choose_placement("auto", memory(file), "f16", 8192, free=16 << 30)
    placement.repack        # whether they are packed
    print(placement)        # "weights packed: 13.8 GB of 24.1 GB free"

Packed weights take about as much memory as the file. Weights that stay in the file take only page cache, so
a model may be larger than memory; what the system evicted is read again when it is used. The KV cache has to
fit in any case.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stretto.errors import InvalidRequest, ModelError
from stretto.weights.memory import Memory

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
