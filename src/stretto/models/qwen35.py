"""Qwen 3.5: gated delta nets, every fourth layer gated attention, whose rope has three axes for images."""

from __future__ import annotations

from stretto.errors import ModelError
from stretto.models.common import Keys, refuse_experts
from stretto.models.hybrids import delta_net, every_so_many, gated_attention
from stretto.models.spec import Attention, Dense, ModelSpec
from stretto.weights.gguf import GGUF


def read(file: GGUF) -> ModelSpec:
    """The spec of a qwen35 file."""
    keys = Keys(file, "qwen35")
    refuse_experts(keys)
    net = delta_net(keys, tiled=True, fused=False)
    return every_so_many(keys, net, attends(keys), Dense(keys.size("feed_forward_length")))


def attends(keys: Keys) -> Attention:
    """The attention of Qwen 3.5."""
    key = f"{keys.arch}.rope.dimension_sections"
    sections = keys.file.metadata.array(key).tolist()
    if len(sections) < 3 or not all(type(n) is int and 0 <= n <= 1 << 16 for n in sections):
        raise ModelError(
            f"{sections}; a count of pairs for each axis is needed", path=keys.file.path, field=key
        )
    return gated_attention(keys, lambda pairs: interleaved(sections, pairs))


def interleaved(sections: list[int], pairs: int) -> tuple[int, ...]:
    """The axis of each pair: time, row and column in turn, as long as row and column have some left.

    >>> interleaved([3, 1, 2], 6)
    (0, 1, 2, 0, 0, 2)
    """
    return tuple(i % 3 if i // 3 < sections[i % 3] else 0 for i in range(pairs))
