"""Qwen 3.5: gated delta nets, every fourth layer gated attention, whose rope has three axes for images."""

from __future__ import annotations

from stretto.models.common import Keys, dense, refuse_experts
from stretto.models.hybrids import delta_net, every_so_many, gated_attention
from stretto.models.spec import Attention, ModelSpec


def read(keys: Keys) -> ModelSpec:
    """The spec of a qwen35 file."""
    refuse_experts(keys)
    net = delta_net(keys, tiled=True, fused=False)
    return every_so_many(keys, net, attends(keys), dense(keys))


def attends(keys: Keys) -> Attention:
    """The attention of Qwen 3.5."""
    return gated_attention(keys, lambda pairs: read_axes(keys, pairs))


def read_axes(keys: Keys, pairs: int) -> tuple[int, ...]:
    """The axis of each pair, from the number of pairs that the file gives each axis."""
    return interleaved(read_sections(keys, pairs), pairs)


def read_sections(keys: Keys, pairs: int) -> list[int]:
    """The number of pairs that the file gives each axis: time, row, column."""
    sections = keys.file.metadata.array(keys.key("rope.dimension_sections")).tolist()
    if not 3 <= len(sections) <= 4 or not all(type(n) is int and 0 <= n <= pairs for n in sections):
        counts = f"counts of at most {pairs} pairs for time, row and column are needed"
        raise keys.error("rope.dimension_sections", f"{sections}; {counts}")
    return [int(n) for n in sections[:3]]


def interleaved(sections: list[int], pairs: int) -> tuple[int, ...]:
    """The axis of each pair: time, row and column in turn, as long as row and column have some left.

    >>> interleaved([3, 1, 2], 6)
    (0, 1, 2, 0, 0, 2)
    """
    return tuple(i % 3 if i // 3 < sections[i % 3] else 0 for i in range(pairs))
