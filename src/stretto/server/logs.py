"""The last lines of the log, for admins who watch the server."""

from __future__ import annotations

import logging
from collections import deque
from itertools import count

MAX_LINES = 500
MAX_CHARACTERS = 2000  # of a line
LOGGERS = ("stretto.server", "uvicorn")


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
