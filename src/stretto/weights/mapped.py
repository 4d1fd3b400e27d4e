"""Mapped files: guarded against being cut while they are used, and told apart by fingerprints."""

from __future__ import annotations

import mmap
from collections.abc import Collection, Iterable
from hashlib import sha256
from pathlib import Path
from struct import pack
from weakref import WeakSet

import numpy as np

from stretto import _native
from stretto.errors import ModelError
from stretto.weights.tensor import Tensor

# Mapped files, guarded: one that is cut while it is used is a `ModelError`, not the end of the process.
#
# Reading a page that is gone raises SIGBUS. A handler in native code (csrc/memory/guard.h) then puts zeros in
# place of the rest of the mapping and notes it; whoever has computed with it looks here afterwards. That
# costs a look at a counter for each pass, and nothing while pages are read.

broken_mappings = _native.broken_mappings  # how many there were so far, in this process


class GuardedMap(mmap.mmap):
    """A file's bytes, read-only, without reading them."""

    _number = -1
    path: Path
    made_of: Path | None = None

    @classmethod
    def open(cls, fileno: int, path: Path, made_of: Path | None = None) -> GuardedMap:
        """Map an open file; `made_of` is the file that its content was made of, if it was."""
        made = cls(fileno, 0, access=mmap.ACCESS_READ)
        made.path = path
        made.made_of = made_of
        made._number = _native.guard(np.frombuffer(made, np.uint8))
        _live.add(made)
        return made

    def __del__(self) -> None:  # before it is unmapped: another file may come to lie there
        _native.unguard(self._number)

    @property
    def is_broken(self) -> bool:
        """Whether a page of it could not be read."""
        return _native.is_broken(self._number)


_live: WeakSet[GuardedMap] = WeakSet()


def list_maps(paths: Collection[Path]) -> WeakSet[GuardedMap]:
    """The mappings of some files and of what was made of them, for as long as anything uses them."""
    return WeakSet(one for one in list(_live) if one.path in paths or one.made_of in paths)


def check_maps(maps: Iterable[GuardedMap]) -> None:
    """Raise `ModelError` if one of them is broken."""
    for one in list(maps):
        if one.is_broken:
            raise ModelError(
                "the file was cut or overwritten while it was used, or cannot be read any more; load the "
                "model again, and replace files by renaming others over them",
                path=one.path,
            )


# The fingerprint of a model file, without reading its gigabytes.

SAMPLE_BYTES = 4096  # at each end of a tensor

Spans = list[tuple[int, int]]


class Fingerprint:
    """A hash of all of the head, the file's size, and the first and last 4 KiB of every tensor.

    It is computed when it is first asked for, within milliseconds, and depends on the file alone. Until
    then the file stays mapped, so it is that of the model that was loaded, whatever has become of the path.
    That of a split model is a hash over those of its parts.

    >>> GGUF("model.gguf").fingerprint()()
    '5f1a…'
    """

    def __init__(self, parts: Iterable[tuple[memoryview, Iterable[Tensor]]]) -> None:
        self._parts: list[tuple[memoryview, Spans]] = [
            (buffer, [(tensor.offset, tensor.offset + tensor.nbytes) for tensor in tensors])
            for buffer, tensors in parts
        ]
        self._found = ""

    def __call__(self) -> str:
        """The fingerprint, 64 hexadecimal digits."""
        parts = self._parts  # first, since another thread may be about to release it
        if not self._found:
            digests = [_digest(buffer, spans) for buffer, spans in parts]
            found = digests[0] if len(digests) == 1 else sha256("".join(digests).encode()).hexdigest()
            self._found = found
            self._parts = []
        return self._found


def _digest(buffer: memoryview, spans: Spans) -> str:
    """The fingerprint of one file."""
    head = min((first for first, _ in spans), default=buffer.nbytes)
    digest = sha256(pack("<QQ", buffer.nbytes, head))
    digest.update(buffer[:head])
    for first, last in spans:
        digest.update(buffer[first : min(first + SAMPLE_BYTES, last)])
        digest.update(buffer[max(first, last - SAMPLE_BYTES) : last])
    return digest.hexdigest()
