"""Text that comes piece by piece, and the steps by which parsers take it.

A parser is a generator: it yields where it needs more text, and goes on when there is some. So it is written
as if all of the text were there. `Malformed` says that the text is not what the parser expects.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from typing import TypeVar

Value = TypeVar("Value")
Steps = Generator[None, None, Value]
Sink = Callable[[str], None]

_WHITE = re.compile(r"\s*")


class Malformed(Exception):
    """The text is no call, or ended within one."""


class Source:
    """The text so far, the index `at` up to which it was taken, and whether it has ended."""

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        self.has_ended = False

    def more(self) -> Steps[None]:
        """Wait for more text; `Malformed` if there is none."""
        length = len(self.text)
        while len(self.text) == length:
            if self.has_ended:
                raise Malformed
            yield

    def peek(self) -> Steps[str]:
        """The next character, which is not taken."""
        while self.at >= len(self.text):
            yield from self.more()
        return self.text[self.at]

    def skip_white(self) -> Steps[None]:
        """Take white space; the text may end."""
        while True:
            match = _WHITE.match(self.text, self.at)
            self.at = match.end() if match else self.at
            if self.at < len(self.text) or self.has_ended:
                return
            yield

    def take(self, pattern: re.Pattern[str]) -> Steps[str]:
        """Take all that a pattern matches, which may end only where it cannot go on."""
        while True:
            match = pattern.match(self.text, self.at)
            end = match.end() if match else self.at
            if end < len(self.text) or self.has_ended:
                found, self.at = self.text[self.at : end], end
                return found
            yield

    def skip(self, marker: str) -> Steps[bool]:
        """Take a marker, whose white space may differ; False, and nothing is taken, if it is not there."""
        start = self.at
        for character in marker:
            if character.isspace():
                continue
            yield from self.skip_white()
            if self.at >= len(self.text) or self.text[self.at] != character:
                self.at = start
                return False
            self.at += 1
        return True

    def expect(self, marker: str) -> Steps[None]:
        """Take a marker; `Malformed` where something else is."""
        if not (yield from self.skip(marker)):
            raise Malformed

    def until(self, end: str, sink: Sink) -> Steps[None]:
        """Give all text before `end` to `sink` as it comes, and take `end`."""
        while True:
            found = self.text.find(end, self.at)
            if found >= 0:
                sink(self.text[self.at : found])
                self.at = found + len(end)
                return
            safe = len(self.text) - overlap(self.text, end, self.at)
            if safe > self.at:
                sink(self.text[self.at : safe])
                self.at = safe
            yield from self.more()


def overlap(text: str, marker: str, start: int = 0) -> int:
    """The length of the longest end of `text[start:]` that is a beginning of `marker`, but not all of it."""
    longest = min(len(text) - start, len(marker) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(marker[:n])), 0)
