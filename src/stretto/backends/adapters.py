"""Adapters in a batch: which rows are computed with which, and which matrices they change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from stretto.models.spec import ModelSpec
from stretto.weights.adapters import LoRA, Pair

__all__ = ["Adapts", "LoRA", "Mix", "changes_of", "scales_of"]

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Mix:
    """The adapters that a row is computed with and the scale of each, in order of their names.

    `key` tells its K and V from those of other mixes: it has the fingerprints of the adapters, not their
    names.
    """

    parts: tuple[tuple[str, float], ...]
    key: str

    def __str__(self) -> str:
        return " + ".join(name if scale == 1 else f"{scale:g} × {name}" for name, scale in self.parts)


@runtime_checkable
class Adapts(Protocol):
    """The part of a backend that computes rows with adapters (`Batch.mixes`)."""

    def load_adapter(self, name: str, lora: LoRA) -> None:
        """Have an adapter ready under a name that none has yet."""
        ...

    def unload_adapter(self, name: str) -> None:
        """Free an adapter."""
        ...


def scales_of(mixes: Sequence[Mix | None]) -> dict[str, Floats]:
    """Each adapter's scale for each row, float32[n], 0 where a row is without it; in order of their names.

    A row's changes are added in that order, which is why it must not depend on the batch.
    """
    found: dict[str, Floats] = {}
    for row, mix in enumerate(mixes):
        for name, scale in mix.parts if mix is not None else ():
            if name not in found:
                found[name] = np.zeros(len(mixes), np.float32)
            found[name][row] = scale
    return dict(sorted(found.items()))


def changes_of(spec: ModelSpec, pairs: Mapping[str, Pair]) -> dict[str, Pair]:
    """The changes by the decoder's names: a matrix of the file may be several of the decoder's."""
    parts: dict[str, list[str]] = {}
    slices = spec.slices()
    for name, at in slices.items():
        parts.setdefault(at.tensor, []).append(name)
    found: dict[str, Pair] = {}
    for tensor, pair in pairs.items():
        for name in parts.get(tensor, ()):
            at = slices[name]
            found[name] = pair.rows(at.first, at.first + at.rows)
        if tensor not in parts:
            found[tensor] = pair
    return found
