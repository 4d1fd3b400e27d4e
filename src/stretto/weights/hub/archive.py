"""Reads single members out of a wheel, without trusting the archive's own sizes."""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from stretto.errors import PullError

_CHUNK_BYTES = 1 << 20

# Exceptions of `zipfile` for damaged archives, as found by fuzzing.
_DAMAGE = (
    zipfile.BadZipFile,
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

    The size that the archive declares is checked before the first byte is unpacked, and `zipfile` never
    yields more than that, so an archive that would unpack to terabytes stops here.
    """
    most = limit if exactly is None else exactly
    count = 0
    try:
        with zipfile.ZipFile(archive) as members:
            declared = members.getinfo(member).file_size
            if declared > most or (exactly is not None and declared != exactly):
                wanted = f"at most {limit}" if exactly is None else f"{exactly}"
                raise _wrong(archive, f"{member} has {declared} bytes instead of {wanted}")
            with members.open(member) as source:
                while chunk := source.read(_CHUNK_BYTES):
                    count += len(chunk)
                    yield chunk
    except KeyError:
        raise _wrong(archive, f"there is no {member} in it") from None
    except _DAMAGE as error:
        raise _wrong(archive, f"the archive is damaged: {error}") from error
    if count != declared:
        raise _wrong(archive, f"{member} ends after {count} of {declared} bytes")


def _wrong(archive: Path, what: str) -> PullError:
    return PullError(
        f"{archive.name} is not what was expected: {what}; nothing was kept. "
        "Pull again; if that does not help, the index serves a changed package"
    )
