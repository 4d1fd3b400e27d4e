"""Command R7B and Command A: a Command R with windows in three of four layers, and no rope in the others."""

from __future__ import annotations

from dataclasses import replace

from stretto.models.command_r import parallel_decoder
from stretto.models.common import Keys, attention, head_size, windowed, without_rope
from stretto.models.rope import read_rope
from stretto.models.spec import ModelSpec
from stretto.weights.gguf import GGUF

PERIOD = 4  # every fourth layer is global, unless the file says otherwise


def read(file: GGUF) -> ModelSpec:
    """The spec of a cohere2 file."""
    keys = Keys(file, "cohere2")
    rotated = attention(keys, read_rope(file, "cohere2", head_size(file, "cohere2"), "adjacent"))
    near, wide = replace(rotated, window=keys.size("attention.sliding_window")), without_rope(rotated)
    return parallel_decoder(keys, (near if narrow else wide for narrow in windowed(keys, PERIOD)))
