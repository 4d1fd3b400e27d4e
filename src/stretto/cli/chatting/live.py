"""Lines at the bottom of a terminal that may still change, drawn with as little writing as possible."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import IO

# Terminals that know this mode show all that is written in between at once; others ignore it.
_HOLD, _SHOW = "\x1b[?2026h", "\x1b[?2026l"


class LiveLines:
    """The lines that were drawn last; the cursor stays behind the last of them.

    Only lines that differ are written again, and only those that the screen still shows: a line that has
    scrolled away is never touched. Text that only grows is written as it is, without moving the cursor.
    """

    def __init__(self, file: IO[str], height: Callable[[], int]) -> None:
        self._file = file
        self._height = height
        self._lines: list[str] = []

    def draw(self, lines: Sequence[str]) -> None:
        """Make these the lines."""
        old, new = self._lines, list(lines)
        if not new or old == new:
            return
        self._lines = new
        if not old:
            self._write("\r\n".join(new))
            return
        same = next((i for i, pair in enumerate(zip(old, new, strict=False)) if pair[0] != pair[1]), None)
        first = min(len(old), len(new)) if same is None else same
        last = len(old) - 1
        if first >= last and len(new) > last and new[last].startswith(old[last]):  # nothing but more text
            self._write("\r\n".join([new[last][len(old[last]) :], *new[last + 1 :]]))
            return
        top = max(0, len(old) - self._height())  # lines above it cannot be reached
        first = max(min(first, len(new) - 1), top)
        up = f"\x1b[{last - first}A" if first < last else ""
        self._write(f"{_HOLD}\r{up}\x1b[J" + "\r\n".join(new[first:]) + _SHOW)

    def commit(self, n: int) -> None:
        """Leave the first `n` lines as they are for good. If these are all, the next one starts below."""
        if n and n == len(self._lines):
            self._write("\r\n")
        del self._lines[:n]

    def _write(self, text: str) -> None:
        self._file.write(text)
        self._file.flush()
