"""Metadata that did not come from a GGUF file: made from Python values, read in the same way.

>>> make_metadata({"bert.block_count": 6, "tokenizer.ggml.tokens": ["a", "b"]}, "folder").strings(TOKENS)
['a', 'b']
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stretto.weights.metadata import Metadata, Strings, Value, ValueType

_TYPES = {
    bool: ValueType.BOOL,
    int: ValueType.INT64,
    float: ValueType.FLOAT64,
    str: ValueType.STRING,
}


class ListedStrings(Strings):
    """An array of strings that is a list already."""

    def __init__(self, strings: Sequence[str]) -> None:
        super().__init__(memoryview(b""), 0, len(strings), "")
        self._decoded, self._buffer = list(strings), None


def make_metadata(values: Mapping[str, Any], path: str | os.PathLike[str]) -> Metadata:
    """Metadata with these values: bool, int, float, str, lists of strings or numbers, and NumPy arrays."""
    made: dict[str, Value] = {}
    for key, value in values.items():
        if isinstance(value, (list, tuple)):
            strings = bool(value) and isinstance(value[0], str)
            made[key] = ListedStrings(value) if strings else np.asarray(value)
        else:
            made[key] = value
    types = {key: _TYPES.get(type(value), ValueType.ARRAY) for key, value in made.items()}
    return Metadata(made, types, os.fspath(path))
