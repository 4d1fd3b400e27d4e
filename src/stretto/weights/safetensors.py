"""The head of a safetensors file, for files that are written piece by piece or compared byte by byte.

The package writes what is in memory as a whole; a long sequence of a large model has gigabytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.errors import ModelError
from stretto.weights.formats import Format, dequantize
from stretto.weights.part import MappedFile
from stretto.weights.tensor import Tensor

WRITTEN_SIZES = {"U8": 1, "I32": 4, "F32": 4}  # bytes of a number


def safetensors_head(metadata: Mapping[str, str], tensors: Mapping[str, tuple[str, Sequence[int]]]) -> bytes:
    """The first bytes of a file with these tensors, (type, shape) each, in order.

    >>> safetensors_head({"made by": "hand"}, {"x": ("F32", [2, 3])})[8:]
    b'{"__metadata__": {"made by": "hand"}, "x": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}} '
    """
    end = 0
    entries: dict[str, Any] = {"__metadata__": dict(metadata)}
    for name, (kind, shape) in tensors.items():
        begin, end = end, end + WRITTEN_SIZES[kind] * prod(shape)
        entries[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(entries).encode("ascii")
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def write_arrays(path: Path, metadata: Mapping[str, str], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays of float32, int32 and uint8 as a safetensors file."""
    kinds = {np.dtype(np.float32): "F32", np.dtype(np.int32): "I32", np.dtype(np.uint8): "U8"}
    shapes = {name: (kinds[array.dtype], array.shape) for name, array in arrays.items()}
    with path.open("wb") as file:
        file.write(safetensors_head(metadata, shapes))
        for array in arrays.values():
            file.write(np.ascontiguousarray(array).data)


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Arrays of a file of float32 and int32, mapped; they may be unaligned."""
    kinds = {"F32": np.dtype("<f4"), "I32": np.dtype("<i4")}
    found: dict[str, NDArray[Any]] = {}
    for name, stored in Shard(path).stored.items():
        if stored.type not in kinds:
            raise ModelError(f"numbers of type {stored.type} are not read here", path=path, field=name)
        found[name] = stored.data.view(kinds[stored.type]).reshape(stored.shape)
    return found


def read_floats(path: Path) -> dict[str, NDArray[np.float32]]:
    """The tensors of a file of F32, F16 or BF16, as float32."""
    kinds = {"F32": Format.F32, "F16": Format.F16, "BF16": Format.BF16}
    found: dict[str, NDArray[np.float32]] = {}
    for name, stored in Shard(path).stored.items():
        if stored.type not in kinds:
            raise ModelError(f"numbers of type {stored.type} are not read here", path=path, field=name)
        rows = stored.data.reshape(*stored.shape[:-1], -1) if stored.shape else stored.data
        found[name] = dequantize(np.ascontiguousarray(rows), kinds[stored.type]).reshape(stored.shape)
    return found


# Reads safetensors files: memory-mapped, checked before use.
#
# The layout: the size of a head (uint64, little-endian), the head, a JSON object with the type, the shape
# and the place of each tensor, then the tensors' bytes. Types of tensors are those of the file ("BF16");
# which of them can be used is for the reader to say.

MAX_HEAD_BYTES = 100 << 20  # as in the library
MAX_TENSORS = 1 << 18  # of a file; the largest models have half as many in all their files together
MAX_SEPARATORS = 16 * MAX_TENSORS  # commas and brackets; those of a tensor with 8 dimensions are 14
MAX_DIMENSIONS = 8
SIZES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64"), 8),
}


@dataclass(frozen=True)
class Stored:
    """A tensor as a file has it: its type by the file's name, its shape, and its bytes."""

    name: str
    type: str
    shape: tuple[int, ...]
    offset: int
    data: NDArray[np.uint8]  # uint8[nbytes], a view into the mapped file

    @property
    def is_aligned(self) -> bool:
        """Whether its numbers can be read in place."""
        return self.offset % SIZES[self.type] == 0


class Shard(MappedFile):
    """A mapped safetensors file; `stored` are its tensors."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.stored = _read_head(self.buffer, path)
        # For the fingerprint, which needs places and sizes only.
        self.tensors = {
            name: Tensor(name, (len(one.data),), Format.I8, one.offset, one.data)
            for name, one in self.stored.items()
        }

    def close(self) -> None:
        """Drop the mapping; views that are still referenced keep it."""
        super().close()
        self.stored = {}


def _read_head(buffer: memoryview, path: Path) -> dict[str, Stored]:
    size = int.from_bytes(buffer[:8], "little")
    if buffer.nbytes < 8 or size > buffer.nbytes - 8 or size > MAX_HEAD_BYTES:
        if bytes(buffer[:7]) == b"version":
            raise ModelError("is a pointer file of Git LFS; fetch the real one: git lfs pull", path=path)
        raise ModelError(
            f"a head of {size} bytes in a file of {buffer.nbytes}: cut off, damaged, or no safetensors file",
            path=path,
        )
    text = bytes(buffer[8 : 8 + size])
    _check_counts(text, path)
    try:
        head = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"the head is no JSON: {error}", path=path, offset=8) from None
    if not isinstance(head, dict):
        raise ModelError("the head is no object", path=path, offset=8)
    head.pop("__metadata__", None)
    stored = {name: _read_entry(buffer, 8 + size, name, entry, path) for name, entry in head.items()}
    _check_places(stored, path)
    return stored


def _check_counts(head: bytes, path: Path) -> None:
    """Raise for a head of more tensors than any model's, before it becomes objects of 20 times its size.

    Each tensor is an object; those written within texts count too, and are far fewer.
    """
    if (n_objects := head.count(b"{")) > MAX_TENSORS:
        raise ModelError(
            f"the head has {n_objects} objects; at most {MAX_TENSORS} tensors are read; split the file",
            path=path,
            offset=8,
        )
    if (n := sum(map(head.count, (b",", b"[")))) > MAX_SEPARATORS:
        raise ModelError(
            f"the head has {n} commas and brackets, more than {MAX_TENSORS} tensors have", path=path, offset=8
        )


def _read_entry(buffer: memoryview, start: int, name: str, entry: Any, path: Path) -> Stored:
    field = f"tensor {name!r}"
    entry = entry if isinstance(entry, dict) else {}
    kind: Any = entry.get("dtype")
    shape: Any = entry.get("shape")
    places: Any = entry.get("data_offsets")
    if not isinstance(kind, str) or kind not in SIZES:
        raise ModelError(f"numbers of type {kind!r} are not known", path=path, field=field)
    if not _is_counts(shape, MAX_DIMENSIONS) or not _is_counts(places, 2) or len(places) != 2:
        raise ModelError(f"shape {shape!r:.60} at {places!r:.60} makes no sense", path=path, field=field)
    first, last = places
    if last - first != prod(shape) * SIZES[kind]:
        raise ModelError(
            f"{kind}{shape} takes {prod(shape) * SIZES[kind]} bytes, and the file gives it {last - first}",
            path=path,
            field=field,
        )
    if last > buffer.nbytes - start:
        raise ModelError(
            f"it ends at byte {last} of the data, which has {buffer.nbytes - start}: cut off or damaged",
            path=path,
            field=field,
        )
    data = np.frombuffer(buffer, np.uint8, last - first, start + first)
    return Stored(name, kind, tuple(shape), start + first, data)


def _is_counts(value: Any, most: int) -> bool:
    return (
        isinstance(value, list)
        and len(value) <= most
        and all(type(one) is int and 0 <= one < 1 << 48 for one in value)
    )


def _check_places(stored: dict[str, Stored], path: Path) -> None:
    """Raise if tensors overlap."""
    places = sorted(
        (one.offset, one.offset + len(one.data), one.name) for one in stored.values() if len(one.data)
    )
    for (_, end, name), (first, _, other) in pairwise(places):
        if first < end:
            raise ModelError(
                f"its bytes overlap those of {name!r}", path=path, offset=first, field=f"tensor {other!r}"
            )
