"""Files that are written atomically, and files of small records that are read with care."""

from __future__ import annotations

import json
import mmap
import os
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from struct import pack
from typing import Any, BinaryIO
from weakref import WeakSet

import numpy as np

from stretto import _native
from stretto.errors import ModelError
from stretto.weights.tensor import Tensor


@contextmanager
def atomic_write(path: str | os.PathLike[str], *, durable: bool = True) -> Iterator[BinaryIO]:
    """A file to write into, which becomes `path` when the block ends and vanishes if it raises.

    With `durable=False` it does not wait for the disk: after a power cut it may be there and damaged.

    >>> with atomic_write("notes.bin") as file:
    ...     file.write(b"all of it")
    """
    target = Path(path)
    part = target.with_name(f".{target.name}.{os.urandom(8).hex()}.part")
    try:
        with part.open("xb") as file:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
        part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def read_records(path: Path, most: int = 1 << 20) -> dict[str, Any]:
    """The object in a JSON file of ours; `ValueError` if it is not one, or has more than `most` bytes."""
    if path.stat().st_size > most:
        raise ValueError("too large")
    try:
        records = json.loads(path.read_bytes())
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(records, dict):
        raise ValueError("no JSON object")
    return records


# Mapped files, guarded: one that is cut while it is used is a `ModelError`, not the end of the process.
#
# Reading a page that is gone raises SIGBUS. A handler in native code (csrc/guard.h) then puts zeros in
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


def maps_of(paths: Collection[Path]) -> WeakSet[GuardedMap]:
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


# Names of split files: `model-00001-of-00003.gguf` is the first of three parts.
#
# >>> part_name("model-00002-of-00003.gguf").file(3) 'model-00003-of-00003.gguf'

MAX_PARTS = 1024  # each takes a file descriptor; a larger count is no part's name

_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})(\.gguf)", re.IGNORECASE | re.ASCII | re.DOTALL)


@dataclass(frozen=True)
class PartName:
    """The name of one part: the stem that all parts share, the part's number from 1 on, and the count."""

    stem: str
    number: int
    count: int
    suffix: str = ".gguf"

    def file(self, number: int) -> str:
        """The name of another part."""
        return f"{self.stem}-{number:05d}-of-{self.count:05d}{self.suffix}"

    @property
    def files(self) -> list[str]:
        """The names of all parts."""
        return [self.file(number) for number in range(1, self.count + 1)]


def part_name(name: str) -> PartName | None:
    """A file's name as that of a part; None if it is not one."""
    match = _PART.fullmatch(name)
    if match is None or not 1 <= int(match[2]) <= int(match[3]) <= MAX_PARTS:
        return None
    return PartName(match[1], int(match[2]), int(match[3]), match[4])


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
