"""The image cache: vectors of encoded images, in memory and in a folder that outlives the process.

    cache = VectorCache(ImageCache())
    cache.find(key, (64, 576))              # float32[64, 576], or None: encode it
    cache.keep(key, vectors)

A key is a digest of an image's pixels and its encoder. A file that cannot be read or written counts as a
miss: nothing here raises for it.
"""

from __future__ import annotations

import os
import re
import time
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from stat import S_ISREG

import numpy as np
from numpy.typing import NDArray

from stretto.errors import PullError, wrong_value
from stretto.weights import hub
from stretto.weights.files import atomic_write
from stretto.weights.safetensors import safetensors_head

# A folder of encoded images, one safetensors file each, under a limit on their bytes together.
#
# A file is valid if it is, byte for byte, what would be written for this key, shape and numbers: its head
# follows from them and from the checksum of the numbers, so nothing in it has to be parsed. Its size is
# known before it is read. Files are written atomically, by renaming, and may vanish at any time; so any
# number of processes can share a folder.

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


Floats = NDArray[np.float32]

MAX_BYTES = 1 << 50  # upper limit of `memory` and `disk`


@dataclass(frozen=True)
class ImageCache:
    """Size and place of the cache of encoded images, for `stretto.load`. Sizes are in bytes.

    - `memory`: vectors of the images used last
    - `disk`: files of the images used last, 0 for none
    - `folder`: where they are; None is `images` in $STRETTO_HOME, or in ~/.cache/stretto

    A file holds the vectors of an image, not its pixels. Several processes may share a folder; other files
    in it are not touched.

    >>> stretto.load("m.gguf", vision="mmproj.gguf", image_cache=stretto.ImageCache(disk=4 << 30))
    """

    memory: int = 64 << 20
    disk: int = 512 << 20
    folder: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        for name in ("memory", "disk"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_BYTES:
                raise wrong_value(name, value, f"a number of bytes from 0 to {MAX_BYTES}")
        if self.folder is not None and not _is_path(self.folder):
            raise wrong_value("folder", self.folder, "the path of a folder")

    @classmethod
    def of(cls, value: object) -> ImageCache:
        """The value of `image_cache=`: True is the default, False is none, a path is a folder."""
        if isinstance(value, cls):
            return value
        if isinstance(value, bool):
            return cls() if value else cls(memory=0, disk=0)
        if _is_path(value):
            return cls(folder=value)  # type: ignore[arg-type]  # _is_path has checked it
        raise wrong_value("image_cache", value, "True, False, a folder or a stretto.ImageCache")


class VectorCache:
    """Vectors by key, with LRU eviction."""

    def __init__(self, limits: ImageCache) -> None:
        self.limits = limits
        self._vectors: OrderedDict[bytes, Floats] = OrderedDict()
        self._bytes = 0
        folder = _folder(limits) if limits.disk else None
        self._folder = None if folder is None else Folder(folder, limits.disk)

    def find(self, key: bytes, shape: tuple[int, int]) -> Floats | None:
        """float32[shape], read-only, or None if the image has to be encoded."""
        vectors = self._vectors.get(key)
        if vectors is not None and vectors.shape == shape:
            self._vectors.move_to_end(key)
            return vectors
        vectors = None if self._folder is None else self._folder.read(key, shape)
        if vectors is not None:
            self._remember(key, vectors)
        return vectors

    def keep(self, key: bytes, vectors: Floats) -> None:
        """Store vectors, in memory and on disk."""
        self._remember(key, vectors)
        if self._folder is not None:
            self._folder.write(key, vectors)

    def clear(self, *, disk: bool = True) -> None:
        """Remove all vectors from memory, and with `disk` all files of the folder too."""
        self._vectors.clear()
        self._bytes = 0
        if disk and self._folder is not None:
            self._folder.clear()

    def _remember(self, key: bytes, vectors: Floats) -> None:
        previous = self._vectors.pop(key, None)
        self._bytes -= 0 if previous is None else previous.nbytes
        if vectors.nbytes > self.limits.memory:
            return
        self._vectors[key] = vectors
        self._bytes += vectors.nbytes
        while self._bytes > self.limits.memory:
            _, evicted = self._vectors.popitem(last=False)
            self._bytes -= evicted.nbytes


def _folder(limits: ImageCache) -> str | os.PathLike[str] | None:
    """The folder for files, or None if there is no home directory."""
    if limits.folder is not None:
        return limits.folder
    try:
        return hub.Store.default().home / "images"
    except PullError:
        return None


def _is_path(value: object) -> bool:
    if not isinstance(value, (str, os.PathLike)):
        return False
    name = os.fspath(value)
    return isinstance(name, str) and bool(name) and "\0" not in name and bool(Path(name).parts)
