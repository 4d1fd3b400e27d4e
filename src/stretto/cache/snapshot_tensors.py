"""The tensors of a saved sequence, read from the file by position.

Nothing is mapped: a file that is cut while it is read is a short read, and that is an error, not the end of
the process.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from math import prod
from pathlib import Path
from stat import S_ISREG
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from stretto.errors import SnapshotError

MAX_HEAD_BYTES = 1 << 16  # of JSON; ours have about a thousand
MAX_DIMENSIONS = 2
DTYPES = {"U8": "u1", "I8": "i1", "I32": "<i4", "F32": "<f4", "I64": "<i8"}  # others are refused anyway


@dataclass(frozen=True)
class _Entry:
    type: str
    shape: tuple[int, ...]
    begin: int  # in the file


class SavedTensors:
    """An open safetensors file: `metadata`, and the type, the shape and the rows of its tensors."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = _open(path)
        try:
            self.metadata: dict[str, str] = {}
            self._entries: dict[str, _Entry] = {}
            self._read_head()
        except BaseException:
            self._file.close()
            raise

    def names(self) -> set[str]:
        """The names of the tensors."""
        return set(self._entries)

    def type(self, name: str) -> str:
        """The type of a tensor's numbers, as the file calls it."""
        return self._entries[name].type

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor."""
        return self._entries[name].shape

    def tensor(self, name: str) -> NDArray[Any]:
        """All of a tensor."""
        shape = self._entries[name].shape
        return self.rows(name, 0, shape[0] if shape else 1)

    def rows(self, name: str, first: int, last: int) -> NDArray[Any]:
        """Rows first to last of a tensor; raises if the file has become shorter."""
        entry = self._entries[name]
        rest = entry.shape[1:]
        size = np.dtype(DTYPES[entry.type]).itemsize * prod(rest)
        data = self._read(entry.begin + first * size, (last - first) * size)
        return np.frombuffer(data, DTYPES[entry.type]).reshape(last - first, *rest)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _read(self, offset: int, nbytes: int) -> bytearray:
        data = bytearray(nbytes)
        view, done = memoryview(data), 0
        try:
            self._file.seek(offset)
            while done < nbytes and (n := self._file.readinto(view[done:])):  # type: ignore[attr-defined]
                done += n
        except OSError as error:
            raise SnapshotError(f"cannot be read: {error.strerror or error}", path=self._path) from None
        if done < nbytes:
            raise self._error(f"{nbytes} bytes are announced and {done} are there: it was cut off", offset)
        return data

    def _error(self, message: str, offset: int | None = None) -> SnapshotError:
        return SnapshotError(f"no saved sequence, or damaged: {message}", path=self._path, offset=offset)

    def _read_head(self) -> None:
        size = os.fstat(self._file.fileno()).st_size
        length = int.from_bytes(self._read(0, min(8, size)), "little")
        if length > MAX_HEAD_BYTES:
            raise self._error(f"a head of {length} bytes, more than the {MAX_HEAD_BYTES} allowed", 0)
        if size < 8 or length > size - 8:
            raise self._error(f"a head of {length} bytes in a file of {size}", 0)
        try:
            head = json.loads(bytes(self._read(8, length)).decode())
        except (ValueError, RecursionError) as error:
            raise self._error(f"the head is no JSON: {error}", 8) from None
        if not isinstance(head, dict):
            raise self._error("the head is no object", 8)
        metadata = head.pop("__metadata__", {})
        if not isinstance(metadata, dict) or not all(isinstance(one, str) for one in metadata.values()):
            raise self._error("the metadata are no texts", 8)
        self.metadata = metadata
        end = 0
        for name, entry in sorted(head.items(), key=lambda item: _begin(item[1])):
            end = self._read_entry(name, entry, 8 + length, end)
        if 8 + length + end != size:
            raise self._error(f"tensors of {end} bytes where there are {size - 8 - length}")

    def _read_entry(self, name: str, entry: Any, start: int, end: int) -> int:
        """Check one tensor, which must begin where that before it ends; return its own end."""
        kind, shape, places = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
        if (
            not isinstance(kind, str)
            or kind not in DTYPES
            or entry.keys() - {"dtype", "shape", "data_offsets"}
        ):
            raise self._error(f"tensor {name[:40]!r} has numbers of the type {kind!r:.40}")
        if not _is_counts(shape) or len(shape) > MAX_DIMENSIONS or not _is_counts(places) or len(places) != 2:
            raise self._error(f"tensor {name[:40]!r} has the shape {shape!r:.40} at {places!r:.40}")
        begin, stop = places
        if begin != end or stop - begin != prod(shape) * np.dtype(DTYPES[kind]).itemsize:
            raise self._error(f"tensor {name[:40]!r} of the shape {shape} lies at {begin} to {stop}")
        self._entries[name] = _Entry(kind, tuple(shape), start + begin)
        return int(stop)


def _begin(entry: Any) -> tuple[int, int]:
    """Where a tensor says that it lies, for sorting; whatever makes no sense comes first, and is refused."""
    places: Any = entry.get("data_offsets") if isinstance(entry, dict) else None
    return (places[0], places[1]) if _is_counts(places) and len(places) == 2 else (-1, -1)


def _is_counts(value: Any) -> bool:
    return isinstance(value, list) and all(type(one) is int and 0 <= one < 1 << 48 for one in value)


def _open(path: Path) -> BinaryIO:
    try:
        if not S_ISREG(path.stat().st_mode):  # opening a pipe would wait for its other end
            raise SnapshotError("is not a file", path=path)
        return path.open("rb", buffering=0)
    except FileNotFoundError:
        raise SnapshotError("no such file", path=path) from None
    except OSError as error:
        raise SnapshotError(f"cannot be read: {error.strerror or error}", path=path) from None
