"""The log: a line for each request, a handler that survives a full disk, and the last lines for admins."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections import deque
from collections.abc import Mapping
from itertools import count
from typing import Any

from stretto.server.http.errors import ERROR_STATUS, is_full
from stretto.server.http.state import Caller
from stretto.server.settings import Settings

log = logging.getLogger("stretto.server")

MAX_LINES = 500
MAX_CHARACTERS = 2000  # of a line
LOGGERS = ("stretto.server", "uvicorn")


class ErrorStream(logging.Handler):
    """Writes lines to stderr, and counts those that cannot be written, as on a full disk.

    The first line that can be written again is behind one that says how many were lost, and why.
    """

    def __init__(self, formatter: logging.Formatter, file: int | None = None) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self.n_lost = 0  # since the start
        self._untold = 0  # of these, since a line was written
        self._why = ""
        self._file = file  # a descriptor, in place of stderr

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line."""
        try:
            if self._untold:
                words = f"{self._untold:,} lines of the log were lost: {self._why}"
                lost = logging.LogRecord(record.name, logging.ERROR, "", 0, words, (), None)
                self._write(self.format(lost))
                self._untold = 0
            self._write(self.format(record))
        except OSError as error:
            self._why = "the disk is full" if is_full(error) else error.strerror or str(error)
            self.n_lost += 1
            self._untold += 1
        except Exception:
            self.handleError(record)

    def _write(self, line: str) -> None:
        """Write past the buffers of Python, which would keep a line that failed and fail with the next."""
        data = f"{line}\n".encode(errors="backslashreplace")
        try:
            file = sys.stderr.fileno() if self._file is None else self._file
        except (AttributeError, OSError, ValueError):  # it is no file: a test's, a notebook's
            sys.stderr.write(data.decode())
            return
        while data:
            data = data[os.write(file, data) :]


def n_lost_lines() -> int:
    """How many lines of the log could not be written."""
    return sum(one.n_lost for one in log.handlers if isinstance(one, ErrorStream))


def log_request(
    settings: Settings,
    method: str,
    path: str,
    caller: Caller | None,
    name: str,
    since: float,
    status: int,
    notes: Mapping[str, Any],
) -> None:
    """Write the line of a request that began at a time of the monotonic clock; `notes` are more fields.

    A stream that fails has sent the status 200 before; the line has that of its error. What the server's end
    cuts is no fault of it: a warning, and none where only errors are wanted.
    """
    is_stop = notes.get("error") == "shutting_down"
    if settings.log == "quiet" and (status < 500 or is_stop):
        return
    facts = {
        "request": name,
        "method": method,
        "path": path[:200],
        "status": status,
        "ms": round(1e3 * (time.monotonic() - since), 1),
        **({"key": caller.label} if caller is not None and caller.label else {}),
        **{field: value for field, value in notes.items() if field != ERROR_STATUS},
    }
    level = logging.INFO if status < 500 else logging.WARNING if is_stop else logging.ERROR
    log.log(level, "%s", "request", extra={"facts": facts})


class LastLines(logging.Handler):
    """A handler that keeps the last lines, each of them one line whatever is in it."""

    def __init__(self, formatter: logging.Formatter) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self._lines: deque[tuple[int, str]] = deque(maxlen=MAX_LINES)
        self._numbers = count(1)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        try:
            lines = self.format(record).splitlines()
        except Exception:
            self.handleError(record)
            return
        line = " | ".join(part.strip() for part in lines)
        if len(line) > MAX_CHARACTERS:
            line = line[:MAX_CHARACTERS] + "…"
        self._lines.append((next(self._numbers), "".join(c if c.isprintable() else "\ufffd" for c in line)))

    def since(self, number: int) -> tuple[int, list[str]]:
        """The number of the last line, and the lines after one with that number."""
        lines = list(self._lines)
        return (lines[-1][0] if lines else number), [line for at, line in lines if at > number]

    def attach(self) -> None:
        """Listen to the server's loggers."""
        for name in LOGGERS:
            logging.getLogger(name).addHandler(self)

    def detach(self) -> None:
        """Stop listening."""
        for name in LOGGERS:
            logging.getLogger(name).removeHandler(self)
