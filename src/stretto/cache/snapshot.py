"""A sequence in a file: its tokens, their positions, and their K and V.

    write_snapshot(path, snapshot, cell_bytes, read)      # read(first, last) gives the cells' bytes
    with SnapshotFile(path, expected) as file:            # or SnapshotError: every claim has been checked
        for first, data in file.pieces():                 # and at the end the checksum
            ...

The file is safetensors: `tokens` and `positions`, int32[n], and `cells`, uint8[n, cell_bytes]; if there are
images, the tensors of `snapshot_images` too, and with recurrent layers that of `snapshot_states`. Everything
else is text in its metadata. Cells are read and written in pieces, never as a whole in memory.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from math import prod
from pathlib import Path
from stat import S_ISREG
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from stretto.cache.snapshot_head import Expected, Snapshot, checked_path
from stretto.cache.snapshot_parts import (
    IMAGE_TYPES,
    STATE_TYPES,
    SavedImages,
    SavedStates,
    check_shapes,
    check_states,
)
from stretto.errors import SnapshotError
from stretto.weights.files import atomic_write
from stretto.weights.safetensors import safetensors_head

__all__ = ["Bytes", "Expected", "SavedStates", "Snapshot", "SnapshotFile", "write_snapshot"]


# The tensors of a saved sequence, read from the file by position.
#
# Nothing is mapped: a file that is cut while it is read is a short read, and that is an error, not the end
# of the process.

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


Bytes = NDArray[np.uint8]

PIECE_BYTES = 1 << 20  # of cells that are read or written at a time
UNKNOWN = "0" * 64  # stands for the checksum of cells that are still to be written
TYPES = {"tokens": "I32", "positions": "I32", "cells": "U8"}
FLAT = ("tokens", "positions")


def write_snapshot(
    path: str | os.PathLike[str],
    snapshot: Snapshot,
    cell_bytes: int,
    read: Callable[[int, int], Bytes],
    slot_bytes: int = 0,
    read_state: Callable[[int], Bytes] | None = None,
) -> None:
    """Write a file atomically; `read(first, last)` gives uint8[k, cell_bytes], `read_state(i)` one state."""
    target = checked_path(path)
    snapshot.check(target)
    n, digest, step = len(snapshot.tokens), sha256(), max(1, PIECE_BYTES // max(1, cell_bytes))
    states = sha256()
    try:
        with atomic_write(target) as file:
            file.write(_head(snapshot, cell_bytes, slot_bytes, UNKNOWN, UNKNOWN))
            file.write(snapshot.tokens.astype("<i4").tobytes())
            file.write(snapshot.positions.astype("<i4").tobytes())
            for tensor in _images(snapshot).values():
                file.write(tensor.reshape(-1).data)
            if snapshot.states is not None and read_state is not None:
                for index in range(len(snapshot.states.positions)):
                    data = read_state(index).reshape(-1).data
                    states.update(data)
                    file.write(data)
            for first in range(0, n, step):
                data = read(first, min(first + step, n)).reshape(-1).data
                digest.update(data)
                file.write(data)
            file.seek(0)
            checksums = digest.hexdigest(), states.hexdigest()
            file.write(_head(snapshot, cell_bytes, slot_bytes, *checksums))  # as long as it was
    except OSError as error:
        raise SnapshotError(f"cannot be written: {error.strerror or error}", path=target) from None


def _head(snapshot: Snapshot, cell_bytes: int, slot_bytes: int, cells: str, states: str) -> bytes:
    """The first bytes of the file: a length and its tensors and metadata, as JSON."""
    n = len(snapshot.tokens)
    extra: dict[str, tuple[int, ...]] = {name: tensor.shape for name, tensor in _images(snapshot).items()}
    if snapshot.states is not None:
        extra["states"] = len(snapshot.states.positions), slot_bytes
    shapes = {"tokens": (n,), "positions": (n,), **extra, "cells": (n, cell_bytes)}
    tensors = {name: ((TYPES | IMAGE_TYPES | STATE_TYPES)[name], shape) for name, shape in shapes.items()}
    return safetensors_head(snapshot.metadata(cells, states), tensors)


def _images(snapshot: Snapshot) -> dict[str, NDArray[Any]]:
    return {} if snapshot.images is None else snapshot.images.tensors()


class SnapshotFile:
    """An open file whose head is checked and fits the model; `snapshot` holds its fields."""

    def __init__(self, path: str | os.PathLike[str], expected: Expected) -> None:
        self.path = checked_path(path)
        self._file = SavedTensors(self.path)
        try:
            self._read(expected)
        except BaseException:
            self._file.close()
            raise

    def _read(self, expected: Expected) -> None:
        metadata = self._file.metadata
        Snapshot.check_version(metadata, self.path)
        self._n, cell_bytes, states_shape = self._check_tensors(expected)
        tokens, positions = (self._file.tensor(name) for name in ("tokens", "positions"))
        images = None
        if "runs" in self._file.names():
            images = SavedImages(**{name: self._file.tensor(name) for name in IMAGE_TYPES})
        self.snapshot = Snapshot.from_metadata(metadata, tokens, positions, self.path, images)
        self.snapshot.check(self.path)
        expected.check(self.snapshot, self.path)
        if cell_bytes != expected.cell_bytes:
            raise SnapshotError(f"a cell of {cell_bytes} bytes, not {expected.cell_bytes}", path=self.path)
        layout, slot_bytes = expected.state_layout, expected.slot_bytes
        check_states(self.snapshot.states, states_shape, layout, slot_bytes, self._n, self.path)
        self._cells_hash, self._states_hash = metadata["cells"], metadata.get("states", "")
        self._step = max(1, PIECE_BYTES // max(1, cell_bytes))

    def pieces(self) -> Iterator[tuple[int, Bytes]]:
        """(first, uint8[k, cell_bytes]), one after the other.

        They are valid once the iterator ends: it raises `SnapshotError` at the end if the checksum is wrong.
        """
        digest = sha256()
        # SHA-256 has instructions of its own on most processors, and is then the fastest hash in the standard
        # library. It still takes as long as reading, so it runs in a thread.
        with ThreadPoolExecutor(1) as pool:
            hashed = pool.submit(digest.update, b"")
            for first in range(0, self._n, self._step):
                data: Bytes = self._file.rows("cells", first, min(first + self._step, self._n))
                hashed.result()
                hashed = pool.submit(digest.update, data.reshape(-1).data)
                yield first, data
            hashed.result()
        if digest.hexdigest() != self._cells_hash:
            raise SnapshotError("damaged: the cells are not those that were saved", path=self.path)

    def states(self) -> Iterator[Bytes]:
        """uint8[1, slot_bytes] of each state, valid once the iterator ends, as `pieces`."""
        saved, digest = self.snapshot.states, sha256()
        if saved is None:
            return
        for index in range(len(saved.positions)):
            data: Bytes = self._file.rows("states", index, index + 1)
            digest.update(data.reshape(-1).data)
            yield data
        if digest.hexdigest() != self._states_hash:
            raise SnapshotError("damaged: the states are not those that were saved", path=self.path)

    def _check_tensors(self, expected: Expected) -> tuple[int, int, tuple[int, ...]]:
        """Number of tokens, bytes of a cell, shape of the states: types, shapes and lengths agree."""
        names = self._file.names()
        wanted = TYPES | (IMAGE_TYPES if "runs" in names else {}) | (STATE_TYPES if "states" in names else {})
        if names != wanted.keys():
            raise SnapshotError(
                f"the tensors {', '.join(TYPES)} are needed and no others, or with images "
                f"{', '.join(IMAGE_TYPES)} too, and states of recurrent layers",
                path=self.path,
            )
        shapes: dict[str, list[int]] = {}
        for name, kind in wanted.items():
            shapes[name] = list(self._file.shape(name))
            if self._file.type(name) != kind or len(shapes[name]) != (1 if name in FLAT else 2):
                message = f"{kind} is needed, not {self._file.type(name)}{shapes[name]}"
                raise SnapshotError(message, path=self.path, field=f"tensor {name!r}")
        (n,), (n_positions,), (n_cells, cell_bytes) = (shapes[name] for name in TYPES)
        if not n == n_positions == n_cells:
            raise SnapshotError(f"{n} tokens, {n_positions} positions and {n_cells} cells", path=self.path)
        if n > expected.context_length:
            raise SnapshotError(
                f"{n} tokens, and the context has {expected.context_length}; load the model with more cells",
                path=self.path,
            )
        if "runs" in names:
            check_shapes(shapes, n, expected.n_embd, self.path)
        return n, cell_bytes, tuple(shapes.get("states", ()))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> SnapshotFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
