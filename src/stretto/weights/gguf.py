"""Reads GGUF files: memory-mapped, checked before use, copied only on request.

    with GGUF("model.gguf") as file:
        file.metadata["general.architecture"]
        file.tensors["token_embd.weight"].dequantize()   # float32[n_vocab, n_embd]

Opening costs one walk over the head of the file (parser.py), not one over its gigabytes.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from types import TracebackType

from stretto.errors import ModelError
from stretto.weights.fingerprint import Fingerprint
from stretto.weights.metadata import Metadata
from stretto.weights.parser import Parser
from stretto.weights.tensor import Tensor

__all__ = ["GGUF", "Tensor"]

HUGE_PAGE_BYTES = 2 << 20


class GGUF:
    """An open GGUF file: `metadata`, `tensors`, `version`, `alignment`, `nbytes`.

    Tensors and arrays are views into the mapped file; they stay valid after `close` for as long as they
    are referenced. Do not truncate a file in place while it is open: replace it, as `stretto pull` does.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._map, self._buffer = _map(self.path)
        parser = Parser(self._buffer, self.path)
        parser.parse()
        self.version: int = parser.version
        self.alignment: int = parser.alignment
        self.metadata: Metadata = parser.metadata
        self.tensors: dict[str, Tensor] = parser.tensors

    @property
    def nbytes(self) -> int:
        """The size of the file."""
        return self._buffer.nbytes

    def forget(self, tensor: Tensor | None = None, end: int | None = None) -> None:
        """Let the system evict the pages of a tensor, up to byte `end` of it, or of the whole file.

        Reading brings them back. What stands around a tensor goes too: the system may map as much as a huge
        page when one byte is read.
        """
        first, last = 0, self.nbytes
        if tensor is not None:
            stop = tensor.offset + (tensor.nbytes if end is None else end)
            first = tensor.offset // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES
            last = min(last, -(-stop // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES)
        if hasattr(mmap, "MADV_DONTNEED") and first < last:
            self._map.madvise(mmap.MADV_DONTNEED, first, last - first)

    def read_ahead(self, wanted: bool) -> None:
        """Let the system read pages that nobody asked for yet, as it usually does, or keep it from that."""
        if hasattr(mmap, "MADV_RANDOM"):
            self._map.madvise(mmap.MADV_NORMAL if wanted else mmap.MADV_RANDOM)

    def fingerprint(self) -> Fingerprint:
        """The file's fingerprint: call it for the text, now or after `close`."""
        return Fingerprint(self._buffer, self.tensors.values())

    def close(self) -> None:
        """Close the file; views that are still referenced keep their mapping, and read it again."""
        self.forget()
        self.tensors = {}
        self._buffer = memoryview(b"")

    def __enter__(self) -> GGUF:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<GGUF {str(self.path)!r}: {len(self.metadata)} keys, {len(self.tensors)} tensors>"


def _map(path: Path) -> tuple[mmap.mmap, memoryview]:
    """The file's bytes, read-only, without reading them."""
    try:
        mode = path.stat().st_mode
        if not (S_ISREG(mode) or S_ISDIR(mode)):  # opening a pipe would wait for its other end
            raise ModelError("is a pipe, a socket or a device; give the path of a .gguf file", path=path)
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                raise ModelError("the file is empty; fetch it again", path=path)
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            return mapped, memoryview(mapped)
    except FileNotFoundError:
        raise ModelError("no such file", path=path) from None
    except IsADirectoryError:
        raise ModelError("is a directory; give the path of a .gguf file in it", path=path) from None
    except PermissionError:
        raise ModelError("no permission to read it; check the file's owner and mode", path=path) from None
    except (OSError, ValueError) as error:  # a filesystem without mmap, a name with a NUL
        raise ModelError(f"cannot be mapped into memory: {error}", path=path) from None
