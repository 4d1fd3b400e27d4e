"""The patterns of JSON schemas as sets of texts: which exclude each other, and what they do not match.

Classes are those of ECMA 262, as the standard says: `\\d` and `\\w` are ASCII. A dot is also a carriage
return, so complements allow less. What is no regular set, and what is too large, raises `NotExpressible`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from itertools import combinations
from typing import TypeVar

from stretto.structured.automata import (
    ALL,
    EMPTY,
    LAST,
    Node,
    Ranges,
    TooLarge,
    all_of,
    any_of,
    characters,
    has_text,
    is_empty,
    list_texts,
    opposite,
    other,
    ranges,
    repeat,
    then,
    write_expression,
)
from stretto.structured.patterns import SPACES
from stretto.structured.places import NotExpressible, Schema

MAX_REPEATS = 10_000
MAX_PATTERN = 8_000  # characters
MAX_OVERLAPPING = 4  # patterns that may match the same name

Value = TypeVar("Value")
_ESCAPES = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13, "0": 0}
_DIGITS: Ranges = ((48, 57),)
_WORD: Ranges = ((48, 57), (65, 90), (95, 95), (97, 122))


def complement(pattern: str, place: str) -> str | None:
    """A pattern for the texts that another does not match; None if it matches all.

    >>> complement("^a", "#")
    '^(?:|[^a](?:[\\\\s\\\\S])*)$'
    """
    return region([], [pattern], place)


def region(inside: list[str], outside: list[str], place: str) -> str | None:
    """A pattern for the texts that some patterns match and others do not; None if there are none."""

    def make() -> str | None:
        node = all_of([*map(_node, inside), *(opposite(_node(pattern)) for pattern in outside)])
        return None if is_empty(node) else f"^(?:{write_expression(node)})$"

    return _limited(make, place)


def find_texts(inside: list[str], outside: list[str], most: int, place: str) -> list[str] | None:
    """The texts that some patterns match and others do not; None if there are more than `most`."""

    def make() -> list[str] | None:
        found = list_texts(all_of([*map(_node, inside), *(opposite(_node(one)) for one in outside)]), most)
        # Half a character is none.
        return found if found is None else [text for text in found if _SURROGATE.search(text) is None]

    return _limited(make, place)


def matches(pattern: str, text: str, place: str) -> bool:
    """Whether a pattern finds something in a text."""
    return _limited(lambda: has_text(_node(pattern), text), place)


def class_ranges(text: str) -> Ranges | None:
    """The characters of a class, which is written with its brackets; None if it cannot be read."""
    try:
        return _Parser(text[1:]).read_class()
    except _Unknown:
        return None


def without_looking(pattern: str, place: str) -> str:
    """A pattern without look-ahead for the same texts."""
    if "(?=" not in pattern and "(?!" not in pattern:
        return pattern
    found = region([pattern], [], place)
    if found is None:
        raise NotExpressible(place, "no text matches this pattern")
    return found


def separate_patterns(parts: dict[str, Schema], place: str) -> dict[str, list[Schema]]:
    """The schemas of `patternProperties`, by patterns of which no two match the same name."""
    patterns = list(parts)
    if all(disjoint([left, right]) for left, right in combinations(patterns, 2)):
        return {pattern: [part] for pattern, part in parts.items()}
    if len(patterns) > MAX_OVERLAPPING:
        raise NotExpressible(place, f"more than {MAX_OVERLAPPING} patterns may match the same name")
    found: dict[str, list[Schema]] = {}
    for size in range(1, len(patterns) + 1):
        for inside in combinations(patterns, size):
            outside = [pattern for pattern in patterns if pattern not in inside]
            if (name := region(list(inside), outside, place)) is not None:
                found[name] = [parts[pattern] for pattern in inside]
    return found


def disjoint(patterns: list[str]) -> bool:
    """Whether it is proved that no text matches all of some patterns."""
    return nothing_common([[pattern] for pattern in patterns])


def nothing_common(groups: list[list[str]]) -> bool:
    """Whether it is proved that no text matches one pattern of each group."""
    try:
        return _limited(lambda: is_empty(all_of(any_of(map(_node, group)) for group in groups)), "#")
    except NotExpressible:
        return False


def _limited(work: Callable[[], Value], place: str) -> Value:
    try:
        return work()
    except (TooLarge, RecursionError):
        raise NotExpressible(place, "a pattern here is too large to be taken apart") from None
    except _Unknown as error:
        raise NotExpressible(place, f"a pattern with {error} cannot be taken apart") from None


class _Unknown(Exception):
    """A part of a pattern that is not read here."""


@lru_cache(maxsize=256)
def _node(pattern: str) -> Node:
    """All texts in which a pattern finds something."""
    if len(pattern) > MAX_PATTERN:
        raise TooLarge
    return _Parser(pattern).parse()


class _Parser:
    """A pattern on its way. Alternatives are sets of texts, with whether they are anchored on either side."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0

    def parse(self) -> Node:
        alternatives = self._alternatives()
        if self._at < len(self._text):
            raise _Unknown("a bracket that is not opened")
        return any_of(
            then(EMPTY if starts else ALL, node, EMPTY if ends else ALL)
            for starts, node, ends in alternatives
        )

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self, text: str) -> bool:
        found = self._text.startswith(text, self._at)
        self._at += len(text) if found else 0
        return found

    def _alternatives(self) -> list[tuple[bool, Node, bool]]:
        found = [*self._sequence()]
        while self._take("|"):
            found += self._sequence()
        return found

    def _sequence(self) -> list[tuple[bool, Node, bool]]:
        starts = ends = False
        nodes: list[Node] = []
        ahead: list[Node] = []  # what the rest of the text fits, or not
        anchored: list[tuple[bool, Node, bool]] | None = None
        while self._peek() not in ("", "|", ")"):
            if ends or anchored is not None:
                raise _Unknown("an anchor in the middle")
            if self._take("^"):
                if nodes:
                    raise _Unknown("an anchor in the middle")
                starts = True
            elif self._take("$"):
                ends = True
            elif self._text.startswith(("(?!", "(?="), self._at):
                if nodes or not starts:
                    raise _Unknown("look-around in the middle")
                ahead.append(self._look())
            else:
                node = self._atom()
                if isinstance(node, list):  # a group with anchors has to stand alone
                    if nodes or starts or ahead:
                        raise _Unknown("an anchor in the middle")
                    anchored = node
                else:
                    nodes.append(node)
        if anchored is not None:
            return anchored
        whole = then(*nodes)
        if ahead:
            whole, ends = all_of([*ahead, whole if ends else then(whole, ALL)]), True
        return [(starts, whole, ends)]

    def _look(self) -> Node:
        is_negative = self._text[self._at + 2] == "!"
        self._at += 3
        inner = any_of(then(node, EMPTY if ends else ALL) for _, node, ends in self._alternatives())
        if not self._take(")"):
            raise _Unknown("a bracket that is not closed")
        return opposite(inner) if is_negative else inner

    def _atom(self) -> Node | list[tuple[bool, Node, bool]]:
        if self._take("("):
            if self._peek() == "?" and not self._take("?:"):
                raise _Unknown("look-around or a named group")
            inner = self._alternatives()
            if not self._take(")"):
                raise _Unknown("a bracket that is not closed")
            if any(starts or ends for starts, _, ends in inner):
                if self._peek() in tuple("*+?{"):
                    raise _Unknown("an anchor in the middle")
                return inner
            return self._repeated(any_of(node for _, node, _ in inner))
        if self._take("["):
            return self._repeated(characters(self.read_class()))
        if self._take("."):
            return self._repeated(characters(other(((10, 10),))))
        if self._take("\\"):
            found = self._escape()
            return self._repeated(characters(found if isinstance(found, tuple) else ((found, found),)))
        if self._peek() in tuple("*+?"):
            raise _Unknown("a repetition of nothing")
        character = self._peek()
        self._at += 1
        return self._repeated(characters(((ord(character), ord(character)),)))

    def _repeated(self, node: Node) -> Node:
        low: int
        high: int | None
        if self._take("*"):
            low, high = 0, None
        elif self._take("+"):
            low, high = 1, None
        elif self._take("?"):
            low, high = 0, 1
        elif match := _BRACES.match(self._text, self._at):
            self._at = match.end()
            low = int(match[1])
            high = low if match[2] is None else int(match[3]) if match[3] else None
        else:
            return node
        self._take("?")  # as few as possible: the same texts
        if self._peek() in tuple("*+?"):
            raise _Unknown("a repetition of a repetition")
        if max(low, high or 0) > MAX_REPEATS:
            raise TooLarge
        return repeat(node, low, high)

    def read_class(self) -> Ranges:
        """The rest of a class of characters, behind its bracket."""
        is_negative = self._take("^")
        found: list[tuple[int, int]] = []
        while self._peek() != "]":
            if self._peek() in ("", "["):
                raise _Unknown("a class of characters like this")
            low = self._class_item()
            if isinstance(low, tuple):
                found += low
                continue
            high = low
            if self._text.startswith("-", self._at) and self._text[self._at + 1 : self._at + 2] not in (
                "]",
                "",
            ):
                self._at += 1
                last = self._class_item()
                if isinstance(last, tuple) or last < low:
                    raise _Unknown("a class of characters like this")
                high = last
            found.append((low, high))
        self._at += 1
        return other(ranges(found)) if is_negative else ranges(found)

    def _class_item(self) -> int | Ranges:
        if self._take("\\"):
            return 8 if self._take("b") else self._escape()
        character = self._peek()
        self._at += 1
        if not character or (character == "&" and self._peek() == "&"):
            raise _Unknown("a class of characters like this")
        return ord(character)

    def _escape(self) -> int | Ranges:
        """After a backslash: a character, or a class of them."""
        character = self._peek()
        self._at += 1
        if character in _CLASSES:
            return _CLASSES[character]
        if character in _ESCAPES:
            return _ESCAPES[character]
        if match := _CODES.match(self._text, self._at - 1):
            self._at = match.end()
            code = int(match[1] or match[2] or match[3], 16)
            if code > LAST or 0xD800 <= code <= 0xDFFF:
                raise _Unknown("half a character")
            return code
        if not character or character.isalnum():
            raise _Unknown(f"\\{character}")
        return ord(character)


_SURROGATE = re.compile("[\ud800-\udfff]")
_BRACES = re.compile(r"\{(\d+)(,(\d*))?\}")
_CODES = re.compile(r"[xu]\{([0-9A-Fa-f]{1,6})\}|x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})")
_CLASSES: dict[str, Ranges] = {"d": _DIGITS, "D": other(_DIGITS), "w": _WORD, "W": other(_WORD)}
_SPACE = _Parser(f"{SPACES}]").read_class()  # single characters and ranges of them
_CLASSES |= {"s": _SPACE, "S": other(_SPACE)}
