"""Packed weights in a file that all processes of a machine map: `repack="shared"`, for replicas.

    file = packed_file(folder, key, model_path, "", make)   # made once, by whoever comes first
    file.matrices["blk.0.attn_q"].data                     # uint8[bytes], read-only, shared by all who map it

A file has a head in JSON and the matrices as the native core packs them, each on whole cache lines. It is
found by a key: the fingerprint of the model, its time of change and the version of the layouts. It is
written under a lock, beside its place, and renamed when it is complete; its digest is verified whenever it
is opened, and a file that fails is made again. All of it can be deleted at any time.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from stretto.errors import ModelError
from stretto.weights.mapped import GuardedMap

MAGIC = b"STRETTOPACKED001"
LINE_BYTES = 64  # of a cache line
PAGE_BYTES = 4096
MAX_HEAD_BYTES = 1 << 26
HASH_BYTES = 8 << 20  # at a time
DIGEST_BYTES = 32

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class PackedMatrix:
    """A matrix: the format of its file, its shape, and its bytes as the kernels read them."""

    code: int
    rows: int
    columns: int
    data: Bytes


class PackedFile:
    """An open file, mapped; its matrices live as long as anything refers to them."""

    def __init__(self, path: Path, matrices: dict[str, PackedMatrix]) -> None:
        self.path = path
        self.matrices = matrices

    @property
    def nbytes(self) -> int:
        """Bytes of all matrices."""
        return sum(matrix.data.nbytes for matrix in self.matrices.values())


def packed_file(
    folder: Path, key: str, model: Path, variant: str, make: Callable[[], Iterable[tuple[str, PackedMatrix]]]
) -> PackedFile:
    """The file with that key; the first process that asks makes it, the others wait for it.

    Files that were made of the same model and variant under other keys are removed then.
    """
    path, source = folder / f"{sha256(key.encode()).hexdigest()[:40]}.packed", f"{model.absolute()} {variant}"
    if (found := open_packed(path, key, model)) is not None:
        return found
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(path.with_suffix(".lock")):
            if (found := open_packed(path, key, model)) is not None:  # another process has made it meanwhile
                return found
            _remove_older(folder, source)
            _write(path, key, source, make())
    except OSError as error:
        raise ModelError(
            f"the packed weights cannot be written: {error.strerror or error}; make room there, set "
            "STRETTO_HOME to another folder, or take repack='auto', which packs in memory",
            path=path,
        ) from None
    found = open_packed(path, key, model)
    if found is None:
        raise ModelError("the packed weights cannot be read back; the disk may be failing", path=path)
    return found


def open_packed(path: Path, key: str, model: Path) -> PackedFile | None:
    """A complete file with that key whose digest is right; None for any other."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if status.st_uid not in (0, os.geteuid()) or status.st_mode & 0o022:
                return None  # others may have written it
            if status.st_size < PAGE_BYTES:
                return None
            mapped = GuardedMap.open(file.fileno(), path, made_of=model)
    except OSError:
        return None
    with suppress(ValueError, KeyError, TypeError, RecursionError):
        matrices = _read(np.frombuffer(mapped, np.uint8), key)
        if not mapped.is_broken:
            return PackedFile(path, matrices)
    return None


# -- within --


def _read(data: Bytes, key: str) -> dict[str, PackedMatrix]:
    """The matrices of a file; raises ValueError and its like for one that is not as it should be."""
    start = len(MAGIC) + 8 + DIGEST_BYTES
    n_head = int.from_bytes(data[len(MAGIC) : len(MAGIC) + 8].tobytes(), "little")
    if data[: len(MAGIC)].tobytes() != MAGIC or n_head > min(MAX_HEAD_BYTES, data.nbytes - start):
        raise ValueError("not a file of packed weights")
    head = json.loads(data[start : start + n_head].tobytes())
    if head["key"] != key:
        raise ValueError("of another model or version")
    digest = sha256()
    for at in range(start, data.nbytes, HASH_BYTES):
        digest.update(data[at : at + HASH_BYTES].data)
    if digest.digest() != data[start - DIGEST_BYTES : start].tobytes():
        raise ValueError("damaged")
    first = _aligned(start + n_head, PAGE_BYTES)
    matrices: dict[str, PackedMatrix] = {}
    for name, (code, rows, columns, offset, nbytes) in head["matrices"].items():
        if not 0 <= offset <= offset + nbytes <= data.nbytes - first or offset % LINE_BYTES:
            raise ValueError("a matrix lies outside")
        matrices[name] = PackedMatrix(code, rows, columns, data[first + offset : first + offset + nbytes])
    return matrices


def _write(path: Path, key: str, source: str, made: Iterable[tuple[str, PackedMatrix]]) -> None:
    matrices, offset = dict(made), 0
    places: dict[str, tuple[int, int, int, int, int]] = {}
    for name, matrix in matrices.items():
        places[name] = (matrix.code, matrix.rows, matrix.columns, offset, matrix.data.nbytes)
        offset = _aligned(offset + matrix.data.nbytes, LINE_BYTES)
    head = json.dumps({"key": key, "source": source, "matrices": places}).encode()
    part = path.with_suffix(f".{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            os.fchmod(file.fileno(), 0o600)
            start = len(MAGIC) + 8 + DIGEST_BYTES
            file.write(MAGIC + len(head).to_bytes(8, "little") + bytes(DIGEST_BYTES))
            digest = sha256()
            padding = bytes(_aligned(start + len(head), PAGE_BYTES) - start - len(head))
            _put(file, digest.update, head + padding)
            for matrix in matrices.values():
                _put(file, digest.update, matrix.data.data)
                _put(file, digest.update, bytes(-matrix.data.nbytes % LINE_BYTES))
            file.seek(start - DIGEST_BYTES)
            file.write(digest.digest())
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _put(file: BinaryIO, update: Callable[[memoryview | bytes], None], data: memoryview | bytes) -> None:
    file.write(data)
    update(data)


def _aligned(n: int, to: int) -> int:
    return -(-n // to) * to


def _remove_older(folder: Path, source: str) -> None:
    """Remove files made of the same model under another key; who maps one keeps it."""
    for path in folder.glob("*.packed"):
        with suppress(OSError, ValueError, KeyError, TypeError):
            if _source_of(path) == source:
                path.unlink()


def _source_of(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(len(MAGIC))
        n_head = int.from_bytes(file.read(8), "little")
        file.seek(DIGEST_BYTES, os.SEEK_CUR)
        return str(json.loads(file.read(min(n_head, MAX_HEAD_BYTES)))["source"])


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock file, which stays: deleting it would let two processes in."""
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
