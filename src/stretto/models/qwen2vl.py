"""Qwen2-VL and Qwen2.5-VL: Qwen 2 with a rope for rows and columns of images, one range of pairs each."""

from __future__ import annotations

from dataclasses import replace

from stretto.models.common import Keys, add_windows, attention, plain_decoder, read_rope
from stretto.models.qwen35 import read_sections
from stretto.models.spec import ModelSpec


def read(keys: Keys) -> ModelSpec:
    """The spec of a qwen2vl file."""
    rope = read_rope(keys, "halves")
    sections, pairs = read_sections(keys, len(rope.frequencies)), len(rope.frequencies)
    if sum(sections) != pairs:
        raise keys.error("rope.dimension_sections", f"{sections}; together they must be {pairs} pairs")
    axes = tuple(axis for axis, n in enumerate(sections) for _ in range(n))
    return add_windows(keys, plain_decoder(keys, attention(keys, replace(rope, axes=axes), bias=True)))
