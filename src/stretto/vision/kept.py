"""Vectors of images that were encoded before: in memory, and in a folder that outlives the process.

    kept = KeptVectors(ImageCache())
    kept.find(key, (64, 576))               # float32[64, 576], or None: encode it
    kept.keep(key, vectors)

A key tells a picture's pixels and its encoder from all others, so what is found is never another picture's.
Whatever goes wrong with a file makes it a picture that has to be encoded: nothing here raises.
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

MOST = 1 << 50  # bytes that anybody may ask for


@dataclass(frozen=True)
class ImageCache:
    """Where, and how much, `stretto.load` keeps of the images it has encoded. Sizes are in bytes.

    - `memory`: vectors of the images used last
    - `disk`: files of the images used last, 0 for none
    - `folder`: where they are; None is `images` in $STRETTO_HOME, or in ~/.cache/stretto

    A file holds the vectors that an encoder made of a picture, not the picture. Several processes may share
    a folder; other files in it are left alone.

    >>> stretto.load("m.gguf", vision="mmproj.gguf", image_cache=stretto.ImageCache(disk=4 << 30))
    """

    memory: int = 64 << 20
    disk: int = 512 << 20
    folder: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        for name in ("memory", "disk"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST:
                raise InvalidRequest(
                    f"{name} must be a number of bytes from 0 to {MOST}, not {value!r}",
                    param=name,
                    value=value,
                )
        if self.folder is not None and not _is_path(self.folder):
            raise InvalidRequest(
                f"folder must be the path of a folder, not {self.folder!r}", param="folder", value=self.folder
            )

    @classmethod
    def of(cls, what: object) -> ImageCache:
        """What `image_cache=` means: True is the default, False is none, a path is a folder."""
        if isinstance(what, cls):
            return what
        if isinstance(what, bool):
            return cls() if what else cls(memory=0, disk=0)
        if _is_path(what):
            return cls(folder=what)  # type: ignore[arg-type]  # _is_path has looked
        raise InvalidRequest(
            f"image_cache must be True, False, a folder or a stretto.ImageCache, not {what!r}",
            param="image_cache",
            value=what,
        )


class KeptVectors:
    """Vectors by key, the least recently used first to go."""

    def __init__(self, limits: ImageCache) -> None:
        self.limits = limits
        self._found: OrderedDict[bytes, Floats] = OrderedDict()
        self._bytes = 0
        folder = _folder(limits) if limits.disk else None
        self._folder = None if folder is None else Folder(folder, limits.disk)

    def find(self, key: bytes, shape: tuple[int, int]) -> Floats | None:
        """float32[shape], read-only, if it was kept; None if it has to be made."""
        found = self._found.get(key)
        if found is not None and found.shape == shape:
            self._found.move_to_end(key)
            return found
        read = None if self._folder is None else self._folder.read(key, shape)
        if read is not None:
            self._remember(key, read)
        return read

    def keep(self, key: bytes, vectors: Floats) -> None:
        """Keep vectors for later."""
        self._remember(key, vectors)
        if self._folder is not None:
            self._folder.write(key, vectors)

    def clear(self, *, disk: bool = True) -> None:
        """Forget everything in memory, and with `disk` all files of the folder too."""
        self._found.clear()
        self._bytes = 0
        if disk and self._folder is not None:
            self._folder.clear()

    def _remember(self, key: bytes, vectors: Floats) -> None:
        before = self._found.pop(key, None)
        self._bytes -= 0 if before is None else before.nbytes
        if vectors.nbytes > self.limits.memory:
            return
        self._found[key] = vectors
        self._bytes += vectors.nbytes
        while self._bytes > self.limits.memory:
            _, gone = self._found.popitem(last=False)
            self._bytes -= gone.nbytes


def _folder(limits: ImageCache) -> str | os.PathLike[str] | None:
    """Where files go, or None where there is no place for them."""
    if limits.folder is not None:
        return limits.folder
    try:
        return hub.Store.default().home / "images"
    except PullError:  # there is no home directory
        return None


def _is_path(what: object) -> bool:
    if not isinstance(what, (str, os.PathLike)):
        return False
    name = os.fspath(what)
    return isinstance(name, str) and bool(name) and "\0" not in name and bool(Path(name).parts)
