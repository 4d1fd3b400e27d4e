"""The head of a safetensors file, for files that are written piece by piece or compared byte by byte.

The package writes what is in memory as a whole; a long sequence of a large model has gigabytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

SIZES = {"U8": 1, "I32": 4, "F32": 4}  # bytes of a number


def safetensors_head(metadata: Mapping[str, str], tensors: Mapping[str, tuple[str, Sequence[int]]]) -> bytes:
    """The first bytes of a file with these tensors, (type, shape) each, in order.

    >>> safetensors_head({"made by": "hand"}, {"x": ("F32", [2, 3])})[8:]
    b'{"__metadata__": {"made by": "hand"}, "x": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}} '
    """
    end = 0
    entries: dict[str, Any] = {"__metadata__": dict(metadata)}
    for name, (kind, shape) in tensors.items():
        begin, end = end, end + SIZES[kind] * prod(shape)
        entries[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(entries).encode("ascii")
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
