"""Which layers of a model attend to a window only, as files say it."""

from __future__ import annotations

from stretto.models.common import Keys

PATTERN = "attention.sliding_window_pattern"


def windowed(keys: Keys, period: int) -> list[bool]:
    """For each layer, whether it has a window: all but every `period`-th, unless the file says otherwise."""
    key = f"{keys.arch}.{PATTERN}"
    if key in keys.file.metadata and not isinstance(keys.file.metadata[key], int):
        return keys.flags(PATTERN)
    period = keys.size(PATTERN, period)
    return [i % period < period - 1 for i in range(keys.n_layer)]


def both_sides(keys: Keys) -> int:
    """The window of attention in both directions: files have the width of both sides together.

    A token attends to those less than so many positions away.
    """
    return keys.size("attention.sliding_window") // 2 + 1
