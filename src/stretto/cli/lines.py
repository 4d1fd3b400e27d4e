"""The lines of a chat that come from a pipe, and the file that keeps the lines of a keyboard."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

HISTORY_LINES = 1000
HISTORY_BYTES = 8 << 20  # of the file; older lines are not read
LINE_CHARACTERS = 16_384  # a longer text, such as a pasted file, is not remembered


def piped() -> Iterator[str]:
    """Lines from stdin until it ends; bytes that are not UTF-8 come as surrogates."""
    for line in sys.stdin.buffer:
        text = line.decode("utf-8", "surrogateescape").rstrip("\r\n")
        if text.strip():
            yield text


class LineFile:
    """A file of lines that only its owner can read; a text of several lines is kept as one.

    It is a convenience: one that cannot be read or written is no error.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> list[str]:
        """The last texts, oldest first; a file that has grown is cut back to them."""
        try:
            with self._path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - HISTORY_BYTES))
                lines = file.read().decode("utf-8", "replace").splitlines()
        except OSError:
            return []
        last = lines[-HISTORY_LINES:]
        if len(lines) > 2 * HISTORY_LINES or size > HISTORY_BYTES:
            self._write("w", last)
        return [_joined(line) for line in last]

    def append(self, text: str) -> None:
        """Add a text."""
        if text.strip() and len(text) <= LINE_CHARACTERS:
            self._write("a", [_one_line(text)])

    def _write(self, mode: str, lines: list[str]) -> None:
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with _private(self._path, mode) as file:
                file.writelines(f"{line}\n" for line in lines)


def _one_line(text: str) -> str:
    r"""A text as one line.

    >>> _one_line("a\nb")
    'a\\nb'
    """
    lines = text.replace("\\", "\\\\").splitlines()
    return "\\n".join(lines)


def _joined(line: str) -> str:
    r"""The text that `_one_line` made a line of.

    >>> _joined(_one_line("a\nb\\n")) == "a\nb\\n"
    True
    """
    return "\\".join(part.replace("\\n", "\n") for part in line.split("\\\\"))


def _private(path: Path, mode: str) -> IO[str]:
    """Open a file that only its owner can read, created with that mode."""

    def opener(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NOFOLLOW, 0o600)

    file = open(path, mode, encoding="utf-8", errors="replace", opener=opener)  # noqa: SIM115
    os.fchmod(file.fileno(), 0o600)
    return file
