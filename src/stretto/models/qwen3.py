"""Qwen 3: q and k normalised per head instead of biases."""

from __future__ import annotations

from stretto.models.common import decoder, head_size
from stretto.models.rope import read_rope
from stretto.models.spec import ModelSpec
from stretto.weights.gguf import GGUF


def read(file: GGUF) -> ModelSpec:
    """The spec of a qwen3 file."""
    rope = read_rope(file, "qwen3", head_size(file, "qwen3"), "halves")
    return decoder(file, "qwen3", rope, qk_norm=True)
