"""Incremental readers of JSON and of similar literals: what they take is given on as JSON, piece by piece."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator
from math import isfinite
from typing import Any, TypeVar

# Text that comes piece by piece, and the steps by which parsers take it.
#
# A parser is a generator: it yields where it needs more text, and goes on when there is some. So it is
# written as if all of the text were there. `Malformed` says that the text is not what the parser expects.

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

    def take_until(self, end: str) -> Steps[str]:
        """Take all text before `end`, and `end`."""
        parts: list[str] = []
        yield from self.until(end, parts.append)
        return "".join(parts)

    def quote_until(self, end: str, sink: Sink) -> Steps[None]:
        """Give all text before `end` to `sink` as a JSON string, and take `end`."""
        sink('"')
        yield from self.until(end, lambda text: sink(quote_text(text)))
        sink('"')

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


MAX_DEPTH = 64
_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
_WORD = re.compile(r"[-+.\w]+")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0", "a": "\a", "v": "\v"}
_HEX = {"x": 2, "u": 4, "U": 8}
_CONSTANTS = {"True": "true", "False": "false", "None": "null"}


def quote_text(text: str) -> str:
    """A text as it stands within a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def read_json(source: Source, sink: Sink, depth: int = 0) -> Steps[None]:
    """Take a JSON value and give it on as `json.dumps` writes it; strings may hold control characters."""
    yield from source.skip_white()
    first = yield from source.peek()
    if depth > MAX_DEPTH:
        raise Malformed
    if first == '"':
        sink('"')
        yield from read_string(source, sink)
        sink('"')
    elif first in "{[":
        yield from _read_items(source, sink, depth, first)
    else:
        sink((yield from _scalar(source)))


def _read_items(source: Source, sink: Sink, depth: int, first: str) -> Steps[None]:
    """Take an object or a list."""
    closing = "}" if first == "{" else "]"
    source.at += 1
    sink(first)
    is_first = True
    while not (yield from source.skip(closing)):
        if not is_first:
            yield from source.expect(",")
            sink(", ")
        is_first = False
        if first == "{":
            yield from source.skip_white()
            if (yield from source.peek()) != '"':
                raise Malformed
            yield from read_json(source, sink, depth + 1)
            yield from source.expect(":")
            sink(": ")
        yield from read_json(source, sink, depth + 1)
    sink(closing)


def _scalar(source: Source) -> Steps[str]:
    return _checked((yield from source.take(_WORD)))


def _checked(word: str) -> str:
    """A word that is a number, true, false or null."""
    try:
        value = load_strict(word)
    except ValueError:
        raise Malformed from None
    if isinstance(value, float) and not isfinite(value):
        raise Malformed
    return word


def load_strict(text: str) -> Any:
    """A JSON value; NaN and the infinities are none."""

    def refuse(name: str) -> None:
        raise ValueError(name)

    return json.loads(text, parse_constant=refuse)


def read_string(source: Source, sink: Sink) -> Steps[None]:
    """Take a string in JSON's notation, without giving the quotes on."""
    yield from source.expect('"')
    while True:
        next_one = yield from source.peek()
        if next_one == '"':
            source.at += 1
            return
        if next_one == "\\":
            sink((yield from _escape(source)))
        elif next_one < " ":
            source.at += 1
            sink(quote_text(next_one))
        else:
            match = _PLAIN.match(source.text, source.at)
            assert match is not None
            sink(match[0])
            source.at = match.end()


def _escape(source: Source) -> Steps[str]:
    """Take an escape of JSON, as it stands; `\\'`, which models write, is a quote."""
    while len(source.text) < source.at + 2:
        yield from source.more()
    kind = source.text[source.at + 1]
    length = 6 if kind == "u" else 2
    while len(source.text) < source.at + length:
        yield from source.more()
    found = source.text[source.at : source.at + length]
    if kind not in "\"\\/bfnrtu'" or (kind == "u" and not re.fullmatch(r"[0-9a-fA-F]{4}", found[2:])):
        raise Malformed
    source.at += length
    return "'" if kind == "'" else found


def read_literal(source: Source, sink: Sink, quote: str, depth: int = 0) -> Steps[None]:
    """Take a literal and give it on as JSON: `quote` stands around strings, or quotes as in Python."""
    yield from source.skip_white()
    if depth > MAX_DEPTH:
        raise Malformed
    if (yield from _read_quoted(source, sink, quote)):
        return
    first = yield from source.peek()
    closing = {"{": "}", "[": "]", "(": ")"}.get(first)
    if closing is None:
        word = yield from source.take(_WORD)
        sink(_checked(_CONSTANTS.get(word, word)))
        return
    source.at += 1
    sink("{" if first == "{" else "[")
    is_first = True
    while not (yield from source.skip(closing)):
        if not is_first:
            yield from source.expect(",")
            if (yield from source.skip(closing)):  # a comma may stand at the end
                break
            sink(", ")
        is_first = False
        if first == "{":
            yield from read_key(source, sink, quote, ":")
            sink(": ")
        yield from read_literal(source, sink, quote, depth + 1)
    sink("}" if first == "{" else "]")


def read_key(source: Source, sink: Sink, quote: str, assign: str) -> Steps[None]:
    """Take a name, in quotes or not, and the sign after it; give the name on."""
    yield from source.skip_white()
    if not (yield from _read_quoted(source, sink, quote)):
        name = (yield from source.take_until(assign)).strip()
        if not name or re.search(r"[\n{}()\[\],]", name):
            raise Malformed
        sink(json.dumps(name, ensure_ascii=False))
        return
    yield from source.expect(assign)


def _read_quoted(source: Source, sink: Sink, quote: str) -> Steps[bool]:
    """Take a string if there is one."""
    if quote and (yield from source.skip(quote)):
        yield from source.quote_until(quote, sink)
        return True
    first = yield from source.peek()
    if first not in "\"'":
        return False
    source.at += 1
    sink('"')
    yield from _python_string(source, sink, first)
    sink('"')
    return True


def _python_string(source: Source, sink: Sink, quote: str) -> Steps[None]:
    """Take the rest of a string in Python's or in JSON's notation."""
    plain = re.compile(rf"[^\\{quote}]+")
    while True:
        first = yield from source.peek()
        if first == quote:
            source.at += 1
            return
        if first != "\\":
            match = plain.match(source.text, source.at)
            assert match is not None
            sink(quote_text(match[0]))
            source.at = match.end()
            continue
        while len(source.text) < source.at + 2:
            yield from source.more()
        kind = source.text[source.at + 1]
        length = 2 + _HEX.get(kind, 0)
        while len(source.text) < source.at + length:
            yield from source.more()
        digits = source.text[source.at + 2 : source.at + length]
        source.at += length
        sink(_unescaped(kind, digits))


def _unescaped(kind: str, digits: str) -> str:
    """An escape of Python's as part of a JSON string."""
    if kind == "u" and re.fullmatch(r"[0-9a-fA-F]{4}", digits):
        return f"\\u{digits}"  # perhaps half of a pair, which JSON joins
    if kind in _HEX:
        if not re.fullmatch(r"[0-9a-fA-F]+", digits) or int(digits, 16) > 0x10FFFF:
            raise Malformed
        return quote_text(chr(int(digits, 16)))
    return "" if kind == "\n" else quote_text(_ESCAPES.get(kind, kind))
