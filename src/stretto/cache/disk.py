"""The disk store: cells of finished requests in files, found by all that their bits depend on.

    store = DiskStore("prefixes", max_bytes=2 << 30)
    root = store.root(identity, salt="")            # identity: model, precision, kernels …
    keys = list(store.chain(root, tokens))          # a key for each whole block of 64 tokens
    store.write(root, keys[0], cells)
    store.read(root, keys[0], cells.nbytes)         # the same bytes, or None: compute the tokens

A block's key is a keyed hash of its parent's key and its tokens, so it stands for everything from the first
token on. Files are signed with a secret that lies beside them and that only their owner can read: one that
is damaged, cut, renamed or made by somebody else is a miss. Blocks of different salts are in different
folders and have different keys.

Any number of processes share a folder. Readers take no lock: files come and go by renaming. A writer holds a
lock of the system (`flock`), which ends with its process however that ends; what a killed writer has left is
removed by the next one. Errors of the file system are never raised by `read` and `write`.
"""

from __future__ import annotations

import fcntl
import hmac
import json
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from stat import S_IMODE, S_ISDIR, S_ISREG

import numpy as np
from numpy.typing import NDArray

from stretto.cache.items import ImageToken
from stretto.errors import InvalidRequest
from stretto.weights.files import atomic_write, read_records

Bytes = NDArray[np.uint8]

BLOCK_TOKENS = 64  # a shorter rest of a text is not kept
MAGIC = b"stretto block 1\n"
KEY_BYTES = TAG_BYTES = SECRET_BYTES = 32
SIZE_BYTES = 8
HEAD_BYTES = len(MAGIC) + KEY_BYTES + SIZE_BYTES + TAG_BYTES
LOCK_SECONDS = 10.0  # that a writer waits for others; then the block is not written
LOCK_POLL_SECONDS = 0.01
SLACK = 16  # a sixteenth of the limit is made free at a time, so that not every block lists the folder

SPARE_BYTES = 64 << 20  # that stay free on the disk

OWNER = re.compile(r"[0-9a-f]{32}")
OURS = re.compile(r"[0-9a-f]{64}")
PART = re.compile(r"\.[0-9a-f]{64}\.[0-9a-f]{16}\.part")


_locks: set[int] = set()  # descriptors of lock files that this process has open


def _after_fork() -> None:
    """Close lock files in a child: the lock of a writer that is killed would be the child's."""
    while _locks:
        with suppress(OSError):
            os.close(_locks.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@dataclass(frozen=True)
class Root:
    """Where the chains of one model and one salt begin: the key before the first block, and their folder."""

    key: bytes
    owner: str


@dataclass(frozen=True)
class DiskUsage:
    """What a disk store holds.

    `blocks` of `owners` (salts) have `nbytes`, of `max_bytes`; `written` bytes today, of `max_written`.
    `limit` and `write_limit` are those that hold for all processes, if there are any.
    """

    folder: Path
    blocks: int
    owners: int
    nbytes: int
    max_bytes: int
    written: int
    max_written: int
    limit: int | None
    write_limit: int | None


@dataclass
class _Counts:
    """The file `counts`: bytes in all blocks, and those written on a day."""

    nbytes: int = 0
    day: str = ""
    written: int = 0

    def written_today(self) -> int:
        return self.written if self.day == _today() else 0


class DiskStore:
    """A folder of blocks, under a limit on their bytes and on those written a day.

    The limits of `limit`, if there are any, hold for all processes that use the folder.
    """

    def __init__(
        self, folder: str | os.PathLike[str], max_bytes: int = 2 << 30, max_written: int = 64 << 30
    ) -> None:
        self.folder = Path(folder).expanduser().absolute()
        self._max_bytes, self._max_written = max_bytes, max_written
        self._make_folder()
        secret = self._read_secret()
        self._naming = hmac.digest(secret, b"names of blocks", "sha256")
        self._signing = hmac.digest(secret, b"bytes of blocks", "sha256")
        self._salting = hmac.digest(secret, b"salts of keys", "sha256")
        self._is_listed = False  # the folder, by this process

    # -- keys --

    def salt(self, api_key: str) -> str:
        """The salt of an API key's prompts: the same after every restart, and no hint at the key."""
        return hmac.digest(self._salting, api_key.encode(), "sha256").hex()[:32]

    def root(self, identity: str, salt: str | None = None) -> Root:
        """Where chains begin that were computed by `identity` for prompts with a salt."""
        text = json.dumps([identity, salt]).encode()
        return Root(hmac.digest(self._naming, text, "sha256"), self._owner(salt))

    def chain(self, root: Root, items: Sequence[object], n: int | None = None) -> Iterator[bytes]:
        """The keys of the whole blocks of a text, one after the other; of the first n, if not of all."""
        key, n_blocks = root.key, len(items) // BLOCK_TOKENS
        for index in range(n_blocks if n is None else min(n, n_blocks)):
            block = items[index * BLOCK_TOKENS : (index + 1) * BLOCK_TOKENS]
            key = hmac.digest(self._naming, key + _as_bytes(block), "sha256")
            yield key

    def state_key(self, key: bytes) -> bytes:
        """The key of the recurrent states behind a block."""
        return hmac.digest(self._naming, key + b"state", "sha256")

    def _owner(self, salt: str | None) -> str:
        return hmac.digest(self._naming, json.dumps(["owner", salt]).encode(), "sha256").hex()[:32]

    # -- blocks --

    def has(self, root: Root, key: bytes) -> bool:
        """Whether there is a file of that key; whether it is sound shows when it is read."""
        return os.path.lexists(self._path(root, key))

    def touch(self, root: Root, key: bytes, depth: int = 0) -> None:
        """Note that a block is in use, as cells in memory that have it are: it is evicted later."""
        _touch(self._path(root, key), depth)

    def remove(self, root: Root, keys: Iterable[bytes]) -> None:
        """Remove blocks, and so all that come behind them."""
        for key in keys:
            with suppress(OSError):
                self._path(root, key).unlink(missing_ok=True)

    def read(self, root: Root, key: bytes, nbytes: int, depth: int = 0) -> Bytes | None:
        """uint8[nbytes] of a block, or None without a sound file; updates the time of its use.

        `depth` is its place in its chain: of blocks that are used together the last ones are evicted first.
        """
        path = self._path(root, key)
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            with os.fdopen(os.open(path, flags), "rb", buffering=0) as file:
                status = os.fstat(file.fileno())
                is_sound = S_ISREG(status.st_mode) and status.st_size == HEAD_BYTES + nbytes
                data = _read_all(file.fileno(), status.st_size) if is_sound else None
        except OSError:
            return None
        if data is None or not self._is_signed(data, key):
            with suppress(OSError):  # it would keep a sound one from being written
                path.unlink()
            return None
        _touch(path, depth)
        return data[HEAD_BYTES:]

    def write(self, root: Root, key: bytes, data: Bytes, depth: int = 0) -> bool:
        """Write a block unless it is there; False if it cannot be kept, as others then cannot be either."""
        payload = np.ascontiguousarray(data).reshape(-1)
        size = HEAD_BYTES + payload.nbytes
        path = self._path(root, key)
        head = MAGIC + key + payload.nbytes.to_bytes(SIZE_BYTES, "little")
        head += self._sign(head, payload.data)
        try:
            with self._locked() as is_locked:
                if not is_locked:
                    return False
                if self.has(root, key):
                    return True
                max_bytes, max_written = self._limits()
                counts = self._read_counts()
                if counts.written_today() + size > max_written or size > max_bytes:
                    return False
                if not self._is_listed or counts.nbytes + size > max_bytes:
                    counts.nbytes = self._evict(size, max_bytes)
                if shutil.disk_usage(self.folder).free < size + SPARE_BYTES:
                    return False
                # Counted before it is there: a writer that is killed here has counted too much, never too
                # little, until the folder is listed again.
                written = counts.written_today() + size
                self._write_counts(_Counts(counts.nbytes + size, _today(), written))
                path.parent.mkdir(mode=0o700, exist_ok=True)
                with atomic_write(path, durable=False) as file:
                    file.write(head)
                    file.write(payload.data)
                _touch(path, depth)
        except OSError:
            return False
        return True

    # -- the whole --

    def usage(self) -> DiskUsage:
        """What is there now, by listing the folder."""
        blocks = list(self._blocks())
        max_bytes, max_written = self._limits()
        limit, write_limit = self._common_limits()
        return DiskUsage(
            folder=self.folder,
            blocks=len(blocks),
            owners=len({block.path.parent for block in blocks}),
            nbytes=sum(block.nbytes for block in blocks),
            max_bytes=max_bytes,
            written=self._read_counts().written_today(),
            max_written=max_written,
            limit=limit,
            write_limit=write_limit,
        )

    def limit(self, max_bytes: int | None = None, max_written: int | None = None) -> None:
        """Set limits for all processes that use the folder, and evict what is beyond them; None: none."""
        with self._locked() as is_locked:
            self._require(is_locked)
            limits = {"bytes": max_bytes, "written": max_written}
            _write_record(self.folder / "limits", {k: v for k, v in limits.items() if v is not None})
            counts = self._read_counts()
            counts.nbytes = self._evict(0, self._limits()[0])
            self._write_counts(counts)

    def clear(self, salt: str | None = None, *, everything: bool = False) -> int:
        """Remove the blocks of a salt, or all of them; return how many bytes that were."""
        owner, removed = self._owner(salt), 0
        with self._locked() as is_locked:
            self._require(is_locked)
            for block in list(self._blocks(with_parts=True)):
                if everything or block.path.parent.name == owner:
                    block.path.unlink(missing_ok=True)
                    removed += block.nbytes
            counts = self._read_counts()
            counts.nbytes = sum(block.nbytes for block in self._blocks())
            self._write_counts(counts)
            self._remove_empty()
        return removed

    # -- within --

    def _path(self, root: Root, key: bytes) -> Path:
        return self.folder / root.owner / key.hex()

    def _sign(self, head: bytes, payload: memoryview) -> bytes:
        return hmac.digest(self._signing, head + blake2b(payload).digest(), "sha256")

    def _is_signed(self, data: Bytes, key: bytes) -> bool:
        head, payload = data[: HEAD_BYTES - TAG_BYTES].tobytes(), data[HEAD_BYTES:]
        if head != MAGIC + key + payload.nbytes.to_bytes(SIZE_BYTES, "little"):
            return False
        tag = data[HEAD_BYTES - TAG_BYTES : HEAD_BYTES].tobytes()
        return hmac.compare_digest(tag, self._sign(head, payload.data))

    def _make_folder(self) -> None:
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = os.lstat(self.folder)
        except OSError as error:
            reason = error.strerror or error
            raise _folder_error(self.folder, f"cannot be made ({reason}); give another one") from None
        if not S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or S_IMODE(status.st_mode) & 0o077:
            reason = "must be a folder of yours that nobody else can enter (chmod 700); give another one"
            raise _folder_error(self.folder, reason)

    def _read_secret(self) -> bytes:
        """The key that blocks are signed with; made by the first process that needs it."""
        path = self.folder / "secret"
        try:
            if not os.path.lexists(path):
                self._make_secret(path)
            with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
                status = os.fstat(file.fileno())
                secret = file.read(SECRET_BYTES + 1)
        except OSError as error:
            raise _folder_error(path, f"cannot be read ({error.strerror or error})") from None
        if status.st_uid != os.geteuid() or S_IMODE(status.st_mode) & 0o077 or len(secret) != SECRET_BYTES:
            reason = (
                f"must have {SECRET_BYTES} bytes that you alone can read; remove the folder to begin anew"
            )
            raise _folder_error(path, reason)
        return secret

    def _make_secret(self, path: Path) -> None:
        with self._locked() as is_locked:
            self._require(is_locked)
            if not os.path.lexists(path):
                with atomic_write(path) as file:
                    os.fchmod(file.fileno(), 0o600)
                    file.write(os.urandom(SECRET_BYTES))

    @contextmanager
    def _locked(self) -> Iterator[bool]:
        """Hold the folder's lock; False where others have held it for too long."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self.folder / "lock", flags, 0o600)
        _locks.add(descriptor)
        try:
            end = time.monotonic() + LOCK_SECONDS
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > end:
                        yield False
                        return
                    time.sleep(LOCK_POLL_SECONDS)
            yield True
        finally:
            if descriptor in _locks:  # or else this is a forked child
                _locks.remove(descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_UN)  # closing is not enough where a child has it too
                os.close(descriptor)

    def _require(self, is_locked: bool) -> None:
        if not is_locked:
            reason = f"is locked by another process for more than {LOCK_SECONDS:g} s; end that one first"
            raise _folder_error(self.folder, reason)

    def _limits(self) -> tuple[int, int]:
        """The limits on bytes in all, and on bytes a day."""
        most, written = self._common_limits()
        return (
            self._max_bytes if most is None else min(self._max_bytes, most),
            self._max_written if written is None else min(self._max_written, written),
        )

    def _common_limits(self) -> tuple[int | None, int | None]:
        """Those of `limit`, which hold for all processes."""
        found: dict[str, object] = {}
        with suppress(OSError, ValueError):
            found = read_records(self.folder / "limits")
        most, written = found.get("bytes"), found.get("written")
        return (
            most if isinstance(most, int) and most >= 0 else None,
            written if isinstance(written, int) and written >= 0 else None,
        )

    def _read_counts(self) -> _Counts:
        try:
            found = read_records(self.folder / "counts")
            nbytes, day, written = (found[name] for name in ("bytes", "day", "written"))
            if type(nbytes) is int and type(written) is int and nbytes >= 0 <= written:
                return _Counts(nbytes, str(day), written)
        except (OSError, ValueError, KeyError):
            pass
        self._is_listed = False  # it says nothing: the folder is listed
        return _Counts()

    def _write_counts(self, counts: _Counts) -> None:
        record = {"bytes": counts.nbytes, "day": counts.day, "written": counts.written}
        _write_record(self.folder / "counts", record)

    def _evict(self, wanted: int, limit: int) -> int:
        """List the folder and remove the blocks used longest ago until `wanted` bytes fit; return the rest.

        Under the lock, so half-written files have no writer any more.
        """
        blocks = sorted(map(_redated, self._blocks(with_parts=True)), key=lambda block: block.used)
        total = sum(block.nbytes for block in blocks)
        most = limit - wanted
        if total > most:
            most = min(most, limit - max(wanted, limit // SLACK))
        for block in blocks:
            if block.is_part or total > most:
                with suppress(OSError):
                    block.path.unlink()
                total -= block.nbytes
        self._remove_empty()
        self._is_listed = True
        return total

    def _remove_empty(self) -> None:
        """Remove the folders of salts without blocks: salts come and go."""
        for folder in _scan(self.folder):
            if OWNER.fullmatch(folder.name):
                with suppress(OSError):
                    os.rmdir(folder.path)  # noqa: PTH106  # it says no where something is left

    def _blocks(self, with_parts: bool = False) -> Iterator[_Block]:
        """All files of blocks, with half-written ones if asked for."""
        for folder in _scan(self.folder):
            if not OWNER.fullmatch(folder.name) or not folder.is_dir(follow_symlinks=False):
                continue
            for entry in _scan(Path(folder.path)):
                is_part = PART.fullmatch(entry.name) is not None
                if not (OURS.fullmatch(entry.name) or (with_parts and is_part)):
                    continue
                with suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    yield _Block(Path(entry.path), status.st_mtime_ns, status.st_size, is_part)


@dataclass(frozen=True)
class _Block:
    path: Path
    used: int  # nanoseconds, of its last use
    nbytes: int
    is_part: bool


def _redated(block: _Block) -> _Block:
    """A block that was used before now: the clock may have been ahead, and it would stay for that long."""
    now = time.time_ns()
    if block.used <= now:
        return block
    _touch(block.path, 0)
    return replace(block, used=now)


def _scan(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []


def _as_bytes(items: Sequence[object]) -> bytes:
    """Tokens as the bytes that a key is made of; those of images with all that tells them apart."""
    if all(type(item) is int for item in items):
        return b"t" + np.array(items, np.int64).tobytes()
    parts = [
        [int(item), item.digest.hex(), item.index, item.stop, item.columns]
        if isinstance(item, ImageToken)
        else int(item)  # type: ignore[call-overload]
        for item in items
    ]
    return b"i" + json.dumps(parts).encode()


def _read_all(descriptor: int, nbytes: int) -> Bytes | None:
    data: Bytes = np.empty(nbytes, np.uint8)
    view, done = data.data, 0
    while done < nbytes and (n := os.readv(descriptor, [view[done:]])):
        done += n
    return data if done == nbytes else None


def _touch(path: Path, depth: int) -> None:
    """Set the time of use: now, and a little earlier for blocks further behind in a chain."""
    at = time.time_ns() - 1000 * depth
    with suppress(OSError):
        os.utime(path, ns=(at, at))


def _write_record(path: Path, record: dict[str, object]) -> None:
    with atomic_write(path, durable=False) as file:
        file.write(json.dumps(record).encode())


def _today() -> str:
    return time.strftime("%Y-%m-%d", time.gmtime())


def _folder_error(path: Path, reason: str) -> InvalidRequest:
    return InvalidRequest(f"the disk cache {path} {reason}", param="cache_dir", value=str(path))
