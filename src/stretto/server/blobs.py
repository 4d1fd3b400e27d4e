"""Files that Ollama's clients send to make models from: `blobs/` in the model store, named by their SHA-256.

A file is written under another name, and renamed when all of it is there and its hash is right. Models that
are made from it are hard links to it. Files that no model uses are removed after some days.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from contextlib import suppress
from pathlib import Path
from secrets import token_hex

from stretto.server.errors import ApiError
from stretto.weights.hub.store import Store, explained, require_space

UNUSED_DAYS = 14
SPARE_BYTES = 64 << 20  # that must be free while a file of unknown size is written
_DIGEST = re.compile(r"sha256[:-]([0-9a-f]{64})")


def hash_of(digest: str, field: str = "digest") -> str:
    """The hexadecimal digits of `sha256:…`, which a field has; raises for anything else."""
    found = _DIGEST.fullmatch(digest)
    if found is None:
        raise ApiError(
            400,
            f"{field}: {digest[:100]!r} is no digest: sha256: and 64 digits of 0-9 and a-f",
            param=field,
            code="invalid_value",
        )
    return found[1]


class Blobs:
    """The files of a store, by hash."""

    def __init__(self) -> None:
        self.n_uploads = 0

    def find(self, digest: str) -> Path | None:
        """The file with this hash, if it is here."""
        path = _folder() / f"sha256-{hash_of(digest)}"
        return path if path.is_file() else None

    def begin(self, digest: str, nbytes: int | None) -> Upload:
        """A file to write `nbytes` into, None if nobody knows how many."""
        folder = _folder()
        with explained(folder):
            folder.mkdir(parents=True, exist_ok=True)
            _sweep(folder)
            require_space(folder, SPARE_BYTES if nbytes is None else nbytes)
            return Upload(folder, hash_of(digest))


class Upload:
    """A file that is being written: `write` its pieces, then `finish`; `discard` in any case."""

    def __init__(self, folder: Path, expected: str) -> None:
        self._target = folder / f"sha256-{expected}"
        self._expected = expected
        self._hash = hashlib.sha256()
        self._part = folder / f".{expected}.{token_hex(8)}.part"
        self._file = self._part.open("xb")
        self._unchecked = 0  # bytes since the disk was looked at

    def write(self, piece: bytes) -> None:
        """Append a piece."""
        self._hash.update(piece)
        self._unchecked += len(piece)
        with explained(self._target.parent):
            if self._unchecked >= SPARE_BYTES // 2:
                require_space(self._part.parent, SPARE_BYTES)
                self._unchecked = 0
            self._file.write(piece)

    def finish(self) -> None:
        """Give the file its name; raises if its hash is another one."""
        found = self._hash.hexdigest()
        if found != self._expected:
            raise ApiError(
                400,
                f"the digest of the body is sha256:{found}, not sha256:{self._expected}; send it again",
                param="digest",
                code="digest_mismatch",
            )
        with explained(self._target.parent):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._part.replace(self._target)

    def discard(self) -> None:
        """Remove the file, unless it is finished."""
        with suppress(OSError):
            self._file.close()
        self._part.unlink(missing_ok=True)


def _folder() -> Path:
    return Store.default().home / "blobs"


def _sweep(folder: Path) -> None:
    """Remove files that no model has been made from, and what is left of uploads that were killed."""
    oldest = time.time() - UNUSED_DAYS * 86400
    for path in folder.iterdir():
        with suppress(OSError):
            about = path.stat()
            if about.st_nlink == 1 and about.st_mtime < oldest:
                path.unlink()
