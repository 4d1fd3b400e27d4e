"""Files that are written atomically, small records that are read with care, and names of split files.

A pull uses this module, so it needs neither numpy nor the native core, which may still be compiled.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO


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


def hash_files(*paths: Path) -> str:
    """The SHA-256 of files, one behind the other."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    return digest.hexdigest()


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
