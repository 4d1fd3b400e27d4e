"""Which layers of a model attend to a window only, as files say it."""

from __future__ import annotations

from dataclasses import replace

from stretto.models.common import Keys
from stretto.models.spec import Attention, ModelSpec

PATTERN = "attention.sliding_window_pattern"


def windowed(keys: Keys, period: int) -> list[bool]:
    """For each layer, whether it has a window: all but every `period`-th, unless the file says otherwise."""
    key = f"{keys.arch}.{PATTERN}"
    if key in keys.file.metadata and not isinstance(keys.file.metadata[key], int):
        return keys.flags(PATTERN)
    period = keys.size(PATTERN, period)
    return [i % period < period - 1 for i in range(keys.n_layer)]


def with_windows(keys: Keys, spec: ModelSpec) -> ModelSpec:
    """The spec with windows in the layers that the file lists, of an architecture that usually has none.

    Files of llama.cpp's converter do not list any: only Hugging Face folders of these architectures do.
    """
    if f"{keys.arch}.{PATTERN}" not in keys.file.metadata:
        return spec
    window, layers = keys.size("attention.sliding_window"), list(spec.layers)
    for i, has_window in enumerate(keys.flags(PATTERN)):
        mixer = layers[i].mixer
        if has_window and isinstance(mixer, Attention):
            layers[i] = replace(layers[i], mixer=replace(mixer, window=window))
    return replace(spec, layers=tuple(layers))


def both_sides(keys: Keys) -> int:
    """The window of attention in both directions: files have the width of both sides together.

    A token attends to those less than so many positions away.
    """
    return keys.size("attention.sliding_window") // 2 + 1
