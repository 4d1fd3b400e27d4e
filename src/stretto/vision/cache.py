"""The image cache: vectors of encoded images, in memory and in a folder that outlives the process.

    cache = VectorCache(ImageCache())
    cache.find(key, (64, 576))              # float32[64, 576], or None: encode it
    cache.keep(key, vectors)

A key is a digest of an image's pixels and its encoder. A file that cannot be read or written counts as a
miss: nothing here raises for it.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stretto.errors import InvalidRequest, PullError
from stretto.vision.folder import Folder
from stretto.weights import hub

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
                raise InvalidRequest(
                    f"{name} must be a number of bytes from 0 to {MAX_BYTES}, not {value!r}",
                    param=name,
                    value=value,
                )
        if self.folder is not None and not _is_path(self.folder):
            raise InvalidRequest(
                f"folder must be the path of a folder, not {self.folder!r}", param="folder", value=self.folder
            )

    @classmethod
    def of(cls, value: object) -> ImageCache:
        """The value of `image_cache=`: True is the default, False is none, a path is a folder."""
        if isinstance(value, cls):
            return value
        if isinstance(value, bool):
            return cls() if value else cls(memory=0, disk=0)
        if _is_path(value):
            return cls(folder=value)  # type: ignore[arg-type]  # _is_path has checked it
        raise InvalidRequest(
            f"image_cache must be True, False, a folder or a stretto.ImageCache, not {value!r}",
            param="image_cache",
            value=value,
        )


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
