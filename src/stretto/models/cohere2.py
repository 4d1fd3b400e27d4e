"""Command R7B and Command A: a Command R with windows in three of four layers, and no rope in the others."""

from __future__ import annotations

from dataclasses import replace

from stretto.models.command_r import parallel_decoder
from stretto.models.common import Keys, alternate, attention, remove_rope
from stretto.models.spec import ModelSpec

PERIOD = 4  # every fourth layer is global, unless the file says otherwise


def read(keys: Keys) -> ModelSpec:
    """The spec of a cohere2 file."""
    rotated = attention(keys, "adjacent")
    near = replace(rotated, window=keys.size("attention.sliding_window"))
    return parallel_decoder(keys, alternate(keys, near, remove_rope(rotated), PERIOD))
