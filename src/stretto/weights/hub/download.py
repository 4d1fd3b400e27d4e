"""Downloads that resume: bytes go into a `.part` file, whose ETag is in a `.json` file beside it.

    download(web, remote, store_folder / "key", report, wait)   # the path of the whole, verified file

An interrupted download continues where it stopped, if the server still has the same file (Range, If-Range);
else it starts again. What has come is compared with the size and the hash that the server publishes.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from stretto.errors import PullError
from stretto.weights.files import atomic_write, read_records
from stretto.weights.hub.repository import RemoteFile
from stretto.weights.hub.store import require_space
from stretto.weights.hub.web import Answer, Broken, Wait, Web, connection, pause, retrying

CHUNK_BYTES = 1 << 20
_SHA256 = re.compile(r"[0-9a-f]{64}")
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")

Report = Callable[[int], None]  # bytes of this file that are here


def key_of(remote: RemoteFile) -> str:
    """The name of a file's download: the same content has the same one, wherever it comes from."""
    return remote.sha256 or hashlib.sha256(f"{remote.address} {remote.git_id}".encode()).hexdigest()


def with_facts(web: Web, remote: RemoteFile, wait: Wait) -> RemoteFile:
    """The file with its size and hash, asked from the server unless they are known."""
    if remote.nbytes is not None and (remote.sha256 or remote.git_id):
        return remote

    def ask() -> Answer:
        # Not HEAD: storage hosts sign addresses for GET only.
        with web.open(remote.address, {"Range": "bytes=0-0"}) as answer:
            return answer

    answer: Answer = retrying(ask, wait)
    linked = answer.headers.get("x-linked-size", "")
    size = _range(answer)[1] if answer.status == 206 else answer.length
    size = int(linked) if linked.isdecimal() else size
    etag = (answer.headers.get("x-linked-etag") or answer.headers.get("etag", "")).strip('"').lower()
    if remote.nbytes is None and (size is None or size < 0):
        raise PullError(f"{remote.path}: the server does not say how large it is")
    return replace(
        remote,
        nbytes=size if remote.nbytes is None else remote.nbytes,
        sha256=remote.sha256 or (etag if _SHA256.fullmatch(etag) else None),
    )


def read_range(web: Web, remote: RemoteFile, first: int, count: int) -> bytes:
    """Bytes of a file, `count` of them or as many as there are; `Broken` if they do not all come."""
    with (
        web.open(remote.address, {"Range": f"bytes={first}-{first + count - 1}"}) as answer,
        connection(answer.url),
    ):
        if answer.status == 416:
            return b""
        if answer.status == 206 and _range(answer)[0] != first:
            raise PullError(f"{remote.path}: the server sends another range than it was asked for")
        skip = first if answer.status == 200 else 0  # a server without ranges sends it all
        data = bytearray()
        while len(data) < count and (chunk := answer.read(CHUNK_BYTES)):
            data += chunk[skip:]
            skip = max(0, skip - len(chunk))
    if len(data) < count and (remote.nbytes is None or first + len(data) < remote.nbytes):
        raise Broken(f"{remote.path}: the server sent {len(data)} of {count} bytes")
    return bytes(data[:count])


def download(web: Web, remote: RemoteFile, place: Path, report: Report, wait: Wait) -> Path:
    """Fetch a file whose size is known to `place`.part, from where an earlier attempt stopped."""
    part, failures = place.with_name(f"{place.name}.part"), 0
    part.touch()
    while True:
        before = _size(part)
        try:
            if before != remote.nbytes:
                _stream(web, remote, part, report)
            return part
        except Broken as broken:
            failures = 0 if _size(part) > before else failures + 1
            pause(broken, failures, wait)


def discard(place: Path) -> None:
    """Remove what a download has left."""
    for ending in (".part", ".json"):
        place.with_name(place.name + ending).unlink(missing_ok=True)


def verify(part: Path, remote: RemoteFile, shown: str, whole: hashlib._Hash, report: Report) -> str:
    """The file's SHA-256, if size and hash are those that are published; `whole` gets its bytes too."""
    size = _size(part)
    if size != remote.nbytes:
        raise PullError(f"{shown} arrived with {size} of {remote.nbytes} bytes; pull it again")
    digest, git = hashlib.sha256(), hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    with part.open("rb") as source:
        while chunk := source.read(CHUNK_BYTES):
            digest.update(chunk)
            whole.update(chunk)
            if remote.git_id:
                git.update(chunk)
            report(source.tell())
    if remote.sha256 and digest.hexdigest() != remote.sha256:
        raise PullError(
            f"{shown} arrived with SHA-256 {digest.hexdigest()} instead of {remote.sha256}; pull it again"
        )
    if remote.git_id and git.hexdigest() != remote.git_id:
        raise PullError(
            f"{shown} arrived with Git's hash {git.hexdigest()} instead of {remote.git_id}; pull it again"
        )
    return digest.hexdigest()


def _stream(web: Web, remote: RemoteFile, part: Path, report: Report) -> None:
    """Append what is missing, or begin again if the server has another file now."""
    total = remote.nbytes or 0
    start, etag = _resume_point(part, remote)
    headers = {"Range": f"bytes={start}-"} if start else {}
    if start and etag:
        headers["If-Range"] = etag
    with web.open(remote.address, headers) as answer:
        if answer.status == 416 or (answer.status == 206 and _range(answer)[0] != start):
            part.unlink(missing_ok=True)
            raise Broken(f"{remote.path}: the server cannot continue the download")
        start = start if answer.status == 206 else 0
        announced = _range(answer)[1] if answer.status == 206 else answer.length
        if announced is not None and announced != total:
            raise PullError(
                f"{remote.path}: the server sends {announced} bytes, and {total} are listed; pull it again"
            )
        require_space(part.parent, total - start)
        with part.open("r+b" if start else "wb") as file:
            file.truncate(start)
            file.seek(start)
            _remember(part, answer.headers.get("etag", ""))
            report(start)
            with connection(answer.url):
                while chunk := answer.read(CHUNK_BYTES):
                    start += len(chunk)
                    if start > total:
                        raise PullError(
                            f"{remote.path}: more than the {total} bytes that are listed; pull it again"
                        )
                    file.write(chunk)
                    report(start)
    if start < total:
        raise Broken(f"{remote.path}: the connection ended after {start} of {total} bytes")


def _resume_point(part: Path, remote: RemoteFile) -> tuple[int, str]:
    """How many bytes are here, and the ETag that they came with; none if they cannot be continued."""
    size, etag = _size(part), ""
    with suppress(OSError, ValueError):
        etag = str(read_records(part.with_suffix(".json")).get("etag", ""))
    is_strong = etag.startswith('"') and etag.isascii() and etag.isprintable()
    is_sure = is_strong or remote.sha256 or remote.git_id
    if size >= (remote.nbytes or 0) or not is_sure:
        return 0, ""
    return size, etag if is_strong else ""


def _remember(part: Path, etag: str) -> None:
    with atomic_write(part.with_suffix(".json"), durable=False) as file:
        file.write(json.dumps({"etag": etag}).encode())


def _range(answer: Answer) -> tuple[int, int]:
    """The first byte and the size of the whole, of a partial answer; (-1, -1) if it does not say."""
    match = _RANGE.fullmatch(answer.headers.get("content-range", ""))
    return (int(match[1]), int(match[3])) if match else (-1, -1)


def _size(part: Path) -> int:
    try:
        return part.stat().st_size
    except FileNotFoundError:
        return 0
