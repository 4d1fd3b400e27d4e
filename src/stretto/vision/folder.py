"""A folder of encoded images, one safetensors file each, under a limit on their bytes together.

A file is valid if it is, byte for byte, what would be written for this key, shape and numbers: its head
follows from them and from the checksum of the numbers, so nothing in it has to be parsed. Its size is known
before it is read. Files are written atomically, by renaming, and may vanish at any time; so any number of
processes can share a folder.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from stat import S_ISREG

import numpy as np
from numpy.typing import NDArray

from stretto.weights.files import atomic_write
from stretto.weights.safetensors import safetensors_head

Floats = NDArray[np.float32]

OURS = re.compile(r"[0-9a-f]{64}\.image\.safetensors")
PART = re.compile(r"\.[0-9a-f]{64}\.image\.safetensors\.[0-9a-f]{16}\.part")
ABANDONED_SECONDS = 3600.0  # age at which a half-written file is removed
SCAN_FRACTION = 16  # a sixteenth of the limit is written before the folder is listed again
NONBLOCKING = getattr(os, "O_NONBLOCK", 0)  # opening a pipe would wait for its other end


class Folder:
    """Vectors by key, in files, with LRU eviction. Errors of the file system are never raised."""

    def __init__(self, path: str | os.PathLike[str], limit: int) -> None:
        self.path = Path(path).expanduser().absolute()
        self.limit = limit
        self._unscanned_bytes = 0  # may be written before the folder is listed again

    def read(self, key: bytes, shape: tuple[int, int]) -> Floats | None:
        """float32[shape], read-only, or None without a valid file of this key; updates the time of use."""
        path, n_head = self._file(key), len(_head(key, shape, b""))
        n_bytes = n_head + 4 * shape[0] * shape[1]
        try:
            with open(path, "rb", opener=_open) as file:
                status = os.fstat(file.fileno())
                if not S_ISREG(status.st_mode) or status.st_size != n_bytes:
                    return None
                data = file.read(n_bytes + 1)
        except OSError:
            return None
        if len(data) != n_bytes or data[:n_head] != _head(key, shape, memoryview(data)[n_head:]):
            return None
        _touch(path)
        return np.frombuffer(data, "<f4", offset=n_head).reshape(shape)

    def write(self, key: bytes, vectors: Floats) -> None:
        """Write the file of a key, if it can be written; evicts the least recently used ones."""
        path, data = self._file(key), np.ascontiguousarray(vectors, "<f4").data.cast("B")
        n_bytes = len(data) + len(_head(key, vectors.shape, b""))
        if n_bytes > self.limit:
            return
        with suppress(OSError):
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            if n_bytes > self._unscanned_bytes:
                self._evict(n_bytes)
            with atomic_write(path, durable=False) as file:
                file.write(_head(key, vectors.shape, data))
                file.write(data)
            _touch(path)
            self._unscanned_bytes -= n_bytes

    def clear(self) -> None:
        """Remove all files of images."""
        for path, _, _ in self._files():
            with suppress(OSError):
                path.unlink()
        self._unscanned_bytes = 0

    def _evict(self, wanted: int) -> None:
        """List the folder, with files of other processes, and remove the oldest until `wanted` bytes fit."""
        files = sorted(self._files(), key=lambda file: file[1])
        total = sum(size for _, _, size in files)
        spare = max(wanted, self.limit // SCAN_FRACTION)
        for path, _, size in files:
            if total + spare <= self.limit:
                break
            with suppress(OSError):
                path.unlink()
            total -= size
        self._unscanned_bytes = max(wanted, min(self.limit - total, spare))

    def _files(self) -> list[tuple[Path, int, int]]:
        """(path, time of its last use, size) of all our files; abandoned half-written ones are removed."""
        files, now = [], time.time()
        try:
            with os.scandir(self.path) as entries:
                for entry in entries:
                    with suppress(OSError):
                        if OURS.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                            status = entry.stat(follow_symlinks=False)
                            files.append((Path(entry.path), status.st_mtime_ns, status.st_size))
                        elif PART.fullmatch(entry.name) and entry.stat().st_mtime < now - ABANDONED_SECONDS:
                            Path(entry.path).unlink()
        except OSError:
            return files
        return files

    def _file(self, key: bytes) -> Path:
        return self.path / f"{key.hex()}.image.safetensors"


def _head(key: bytes, shape: tuple[int, ...], data: bytes | memoryview) -> bytes:
    """The head of a file; its length does not depend on the numbers."""
    metadata = {
        "format": "stretto image",
        "version": "1",
        "key": key.hex(),
        "checksum": sha256(data).hexdigest(),
    }
    return safetensors_head(metadata, {"vectors": ("F32", shape)})


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | NONBLOCKING)


def _touch(path: Path) -> None:
    """Set a file's time of use to now, with a finer clock than the file system's."""
    now = time.time_ns()
    with suppress(OSError):
        os.utime(path, ns=(now, now))
