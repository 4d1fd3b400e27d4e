"""One file of weights in memory: mapped, its head parsed. A model is one of them, or several (split.py)."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from stat import S_ISDIR, S_ISREG

from stretto.errors import ModelError
from stretto.weights.mapped import GuardedMap, check_maps
from stretto.weights.metadata import Metadata
from stretto.weights.parser import Parser
from stretto.weights.tensor import Tensor

HUGE_PAGE_BYTES = 2 << 20


class MappedFile:
    """A mapped file: `path`, `buffer`, and the tensors in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._map, self.buffer = _map(path)
        self.tensors: dict[str, Tensor] = {}

    def forget(self, tensor: Tensor | None = None, end: int | None = None) -> None:
        """Let the system evict the pages of a tensor, up to byte `end` of it, or of the whole file."""
        first, last = 0, len(self._map)
        if tensor is not None:
            stop = tensor.offset + (tensor.nbytes if end is None else end)
            first = tensor.offset // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES
            last = min(last, -(-stop // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES)
        if hasattr(mmap, "MADV_DONTNEED") and first < last:
            self._map.madvise(mmap.MADV_DONTNEED, first, last - first)

    def read_ahead(self, wanted: bool) -> None:
        """Let the system read pages before they are asked for, as it does by itself, or only then."""
        if hasattr(mmap, "MADV_RANDOM"):
            self._map.madvise(mmap.MADV_NORMAL if wanted else mmap.MADV_RANDOM)

    def check(self) -> None:
        """Raise `ModelError` if the file was cut since it was mapped."""
        check_maps([self._map])

    def close(self) -> None:
        """Drop the mapping; views that are still referenced keep it."""
        self.forget()
        self.tensors = {}
        self.buffer = memoryview(b"")


class Part(MappedFile):
    """A mapped GGUF file: also `metadata`, `version`, `alignment`."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        parser = Parser(self.buffer, path)
        parser.parse()
        self.version: int = parser.version
        self.alignment: int = parser.alignment
        self.metadata: Metadata = parser.metadata
        self.tensors = parser.tensors


def _map(path: Path) -> tuple[GuardedMap, memoryview]:
    """The file's bytes, read-only, without reading them."""
    try:
        mode = path.stat().st_mode
        if not (S_ISREG(mode) or S_ISDIR(mode)):  # opening a pipe would wait for its other end
            raise ModelError("is a pipe, a socket or a device; give the path of a model file", path=path)
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                raise ModelError("the file is empty; fetch it again", path=path)
            mapped = GuardedMap.open(file.fileno(), path)
            return mapped, memoryview(mapped)
    except FileNotFoundError:
        raise ModelError("no such file", path=path) from None
    except IsADirectoryError:
        raise ModelError("is a directory; give the path of a .gguf file in it", path=path) from None
    except PermissionError:
        raise ModelError("no permission to read it; check the file's owner and mode", path=path) from None
    except (OSError, ValueError) as error:  # a filesystem without mmap, a name with a NUL
        raise ModelError(f"cannot be mapped into memory: {error}", path=path) from None
