"""The lines of a chat: typed into a line editor with a history, or read from a pipe."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

PROMPT = "> "
HISTORY_LINES = 1000


def typed(hint: Callable[[], None], history: Path | None) -> Iterator[str]:
    """Lines from the terminal until Ctrl-D, or Ctrl-C twice; after the first Ctrl-C comes the hint."""
    remember = _line_editor(history)
    warned = False
    while True:
        try:
            line = input(PROMPT)
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print()
            if warned:
                return
            warned = True
            hint()
            continue
        warned = False
        if line.strip():
            remember(line)
            yield line


def piped() -> Iterator[str]:
    """Lines from stdin until it ends; bytes that are not UTF-8 come as surrogates."""
    for line in sys.stdin.buffer:
        text = line.decode("utf-8", "surrogateescape").rstrip("\r\n")
        if text.strip():
            yield text


def _line_editor(history: Path | None) -> Callable[[str], None]:
    """Make `input` a line editor where that is possible; returns a function that adds to the history."""
    try:
        import readline
    except ImportError:  # some builds of Python have none; lines can be typed all the same
        return lambda line: None
    if history is None:
        return lambda line: None
    readline.clear_history()
    with suppress(OSError):
        for line in _remembered(history):
            readline.add_history(line)

    def remember(line: str) -> None:
        with suppress(OSError):  # a history is a convenience; a full disk must not end the chat
            history.parent.mkdir(parents=True, exist_ok=True)
            with _private(history, "a") as file:
                file.write(line + "\n")

    return remember


def _remembered(path: Path) -> list[str]:
    """The last lines of the history; a file that has grown is cut back to them."""
    lines = path.read_text("utf-8", "replace").splitlines()
    if len(lines) > 2 * HISTORY_LINES:
        with _private(path, "w") as file:
            file.writelines(f"{line}\n" for line in lines[-HISTORY_LINES:])
    return lines[-HISTORY_LINES:]


def _private(path: Path, mode: str) -> IO[str]:
    """Open a file that only its owner can read, created with that mode."""

    def opener(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NOFOLLOW, 0o600)

    file = open(path, mode, encoding="utf-8", errors="replace", opener=opener)  # noqa: SIM115
    os.fchmod(file.fileno(), 0o600)
    return file
