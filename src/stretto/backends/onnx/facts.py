"""What Stretto's own exports say of themselves in their metadata: windows and ropes of each layer.

It is written by `stretto.export`, and like everything in a file it may be wrong: what makes no sense is
ignored, and then the graph and config.json are all there is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from stretto.backends.onnx.graph import Graph
from stretto.models.parts import Rope

KEY = "stretto.model"
MAX_TEXT = 4 << 20


@dataclass(frozen=True)
class Facts:
    """The windows and ropes of layers; a rope is None where keys cannot be rotated again."""

    architecture: str
    context_length: int
    windows: Mapping[int, int | None]
    ropes: Mapping[int, Rope | None]
    heads: Mapping[int, int]


def read_facts(graph: Graph) -> Facts | None:
    """The facts of an export, if it has them for all layers."""
    text = graph.file.metadata.get(KEY, "")
    if not text or len(text) > MAX_TEXT:
        return None
    try:
        found = json.loads(text)
        layers = {i: layer for i, layer in enumerate(found["layers"]) if isinstance(layer, dict)}
        context = _positive(found["context_length"])
        facts = Facts(
            str(found["architecture"]),
            context,
            {i: _window(layer["window"]) for i, layer in layers.items()},
            {i: _rope(layer, graph) for i, layer in layers.items()},
            {i: _positive(layer["heads"]) for i, layer in layers.items()},
        )
    except (KeyError, TypeError, ValueError, RecursionError):
        return None
    return facts if {plane.layer for plane in graph.planes} <= layers.keys() else None


def _window(value: Any) -> int | None:
    return None if value is None else _positive(value)


def _positive(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1 << 31:
        raise ValueError(value)
    return value


def _rope(layer: dict[str, Any], graph: Graph) -> Rope | None:
    """Keys in the order of exports: the rotated numbers of a head in halves."""
    values = layer["frequencies"]
    if values is None or layer.get("norm_after_rope"):
        return None
    size = max(plane.size for plane in graph.planes)
    numbers = tuple(float(value) for value in values)
    if not 0 < len(numbers) <= size // 2 or not all(isfinite(number) for number in numbers):
        raise ValueError(values)
    return Rope(numbers, "halves")
