"""The servers of this user on this machine: where they listen, what they say, and how to ask them.

`stretto serve` listens on a Unix socket in the user's runtime directory; `stretto run`, `chat`, `ps` and
`stop` ask there. The socket is the user's own, and both sides check that the other one is too. The server's
side is `stretto.server.http.local`, the model that a command gets is `stretto.cli.remote`.

Requests and answers are JSON objects, one a line; requests have a `verb`:

    about     the server: version, pid, address, models with what each was loaded from and how
    open      load a model, and say what it is; others are for a model too, by its name in `model`
    prompt    the tokens of `messages`        encode, decode    text to tokens, and back
    stream    a line for each token, then one with the `result`; `cancel` ends it

This module imports little: a command that asks a server starts in a fraction of the time of one that loads.
"""

from __future__ import annotations

import json
import os
import socket
import stat
import struct
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from stretto.errors import StrettoError

PROTOCOL = 1
MAX_SERVERS = 64  # sockets in the folder that are looked at
MAX_LINE_BYTES = 64 << 20  # of one answer; a result has all tokens
ASK_SECONDS = 2.0  # for a server to say what it is: a stopped process must not hold up a command
SUFFIX = ".sock"
MAX_FILES = 256  # of a model's folder


class Gone(StrettoError):
    """A server has ended, or does not speak as it should."""


class Peer(NamedTuple):
    """The process at the other end of a socket; `pid` is 0 where the system does not say."""

    pid: int
    uid: int


def folder() -> Path:
    """The folder of the sockets: in the user's runtime directory, else in /tmp under the user's number."""
    base = Path(os.environ.get("XDG_RUNTIME_DIR", ""))
    return (
        base / "stretto" if base.is_absolute() and is_private(base) else Path(f"/tmp/stretto-{os.geteuid()}")
    )


def is_private(path: Path) -> bool:
    """Whether a path is a folder, no link to one, of this user, that nobody else may look into."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077


def find_peer(connected: socket.socket) -> Peer:
    """The process that a Unix socket is connected to, as the system knows it."""
    if sys.platform == "darwin":
        level, credentials, process = 0, 1, 2  # SOL_LOCAL, LOCAL_PEERCRED, LOCAL_PEERPID
        _, uid = struct.unpack_from("II", connected.getsockopt(level, credentials, 76))
        (pid,) = struct.unpack("i", connected.getsockopt(level, process, 4))
        return Peer(pid, uid)
    pid, uid, _ = struct.unpack("3i", connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return Peer(pid, uid)


class Connection:
    """A connection to a server of this user."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._buffer = bytearray()
        try:
            self.socket.settimeout(ASK_SECONDS)
            self.socket.connect(str(path))
            self.peer = find_peer(self.socket)
            if self.peer.uid != os.geteuid():
                raise Gone(f"{path} is a socket of user {self.peer.uid}, who is somebody else")
            self.about = self.ask({"verb": "about"})
            self.socket.settimeout(None)
        except BaseException:
            self.close()
            raise

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a request that has one line of it."""
        self.send(request)
        return self.receive()

    def send(self, request: Mapping[str, Any]) -> None:
        """Send a request."""
        try:
            self.socket.sendall(json.dumps(request).encode() + b"\n")
        except OSError as error:
            raise Gone(f"the server cannot be reached any more: {error}") from None

    def receive(self) -> dict[str, Any]:
        """The next line of an answer."""
        while (end := self._buffer.find(b"\n")) < 0:
            if len(self._buffer) > MAX_LINE_BYTES:
                raise Gone(f"the server sent a line of more than {MAX_LINE_BYTES:,} bytes")
            try:
                piece = self.socket.recv(1 << 16)
            except OSError as error:
                raise Gone(f"the server does not answer: {error}") from None
            if not piece:
                raise Gone("the server has closed the connection")
            self._buffer += piece
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        try:
            answer = json.loads(line)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise Gone("the server sent what is no JSON object")
        return answer

    def close(self) -> None:
        """Close it; a stream that runs is cancelled."""
        self.socket.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def servers() -> Iterator[Connection]:
    """Connections to the servers of this user, in order of their process ids; close each.

    Sockets that nobody listens on any more are removed.
    """
    for path in sockets():
        try:
            connection = Connection(path)
        except ConnectionRefusedError:  # its process has ended without removing it
            with suppress(OSError):
                path.unlink()
            continue
        except (OSError, Gone, struct.error):
            continue
        if connection.about.get("protocol") == PROTOCOL:
            yield connection
        else:
            connection.close()


def sockets() -> list[Path]:
    """The sockets in the folder, if it is private: `PID.sock` each, of this user."""
    where = folder()
    if not is_private(where):
        return []
    found: list[tuple[int, Path]] = []
    with suppress(OSError):
        for path in where.iterdir():
            number = path.stem
            if path.suffix == SUFFIX and number.isascii() and number.isdigit() and _is_own_socket(path):
                found.append((int(number), path))
    return [path for _, path in sorted(found)[:MAX_SERVERS]]


def _is_own_socket(path: Path) -> bool:
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISSOCK(found.st_mode) and found.st_uid == os.geteuid()


def identity(path: str | os.PathLike[str]) -> list[Any] | None:
    """What a model's file or folder is: its place, sizes and times; None if that cannot be said.

    A file that is replaced, or written to, has another one.
    """
    place = Path(os.path.realpath(path))
    try:
        if not place.is_dir():
            return None if "-of-" in place.name else [str(place), _stamp(place)]  # a split file is several
        files = sorted(place.iterdir())
        return (
            None if len(files) > MAX_FILES else [str(place), *([file.name, _stamp(file)] for file in files)]
        )
    except OSError:
        return None


def _stamp(path: Path) -> list[int]:
    found = path.stat()
    return [found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]


def loading(model: str | os.PathLike[str], **options: Any) -> dict[str, Any] | None:
    """From what and how a model is loaded, to be compared; None if it cannot be said.

    Two processes in which this is equal give the same texts: the same file, the same options of
    `stretto.load`, the same kernels, the same installation of Stretto.
    """
    found = identity(model)
    if found is None:
        return None
    package = Path(os.path.realpath(__file__)).parents[1]
    try:
        native = sorted(package.glob("_native.*"))
        code = [sys.prefix, str(package), *(_stamp(file) for file in (package / "__init__.py", *native))]
    except OSError:
        return None
    kernels = os.environ.get("STRETTO_KERNELS")
    given = {name: value for name, value in options.items() if value is not None}  # None: left out
    made = {"model": found, "code": code, "kernels": kernels, "options": given}
    read: dict[str, Any] = json.loads(json.dumps(made))
    return read


def error_fields(error: Exception) -> dict[str, Any]:
    """An exception of Stretto as JSON: its kind, message and fields."""
    plain = {name: value for name, value in vars(error).items() if _is_plain(value)}
    return {"kind": type(error).__name__, "message": str(error), "fields": plain}


def restore_error(found: Mapping[str, Any]) -> StrettoError:
    """The exception again."""
    from stretto import errors

    kind = getattr(errors, str(found.get("kind")), None)
    if not (isinstance(kind, type) and issubclass(kind, StrettoError)):
        kind = StrettoError
    error = kind.__new__(kind, str(found.get("message")))
    fields = found.get("fields")
    for name, value in (fields if isinstance(fields, dict) else {}).items():
        setattr(error, str(name), value)
    return error


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, (bool, int, float, str))
