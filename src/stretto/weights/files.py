"""Files that are written atomically, and files of small records that are read with care."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
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
