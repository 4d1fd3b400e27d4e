"""Files that are written atomically."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def atomic_write(path: str | os.PathLike[str], *, durable: bool = True) -> Iterator[BinaryIO]:
    """A file to write into, which becomes `path` when the block ends and vanishes if it raises.

    With `durable=False` it does not wait for the disk: after a power cut it may be there and damaged.

    >>> with atomic_write("notes.bin") as file:
    ...     file.write(b"all of it")
    """
    target = Path(path)
    part = target.with_name(f".{target.name}.{secrets.token_hex(8)}.part")
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
