"""The patterns of JSON schemas as sets of texts: which exclude each other, and what they do not match.

Classes are those of ECMA 262, as the standard says: `\\d` and `\\w` are ASCII. A dot is also a carriage
return, so complements allow less. What is no regular set, and what is too large, raises `NotExpressible`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from itertools import combinations, groupby
from typing import Any, TypeVar

from stretto.structured.automata import (
    ALL,
    EMPTY,
    LAST,
    NONE,
    Node,
    Ranges,
    TooLarge,
    characters,
    has_empty,
    has_text,
    intersection,
    is_empty,
    limited_work,
    list_texts,
    opposite,
    other,
    ranges,
    repeat,
    star,
    then,
    union,
    write_expression,
)
from stretto.structured.patterns import SPACES, with_patterns
from stretto.structured.places import NotExpressible, Schema

MAX_REPEATS = 10_000
MAX_PATTERN = 8_000  # characters
MAX_UNROLLED = 8  # repetitions of what has anchors or looks ahead
MAX_SIZE = 20_000  # of the set of a pattern, with what follows anchors written out
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
        node = intersection([*map(_node, inside), *(opposite(_node(pattern)) for pattern in outside)])
        return None if is_empty(node) else f"^(?:{write_expression(node)})$"

    return _limited(make, place)


def find_texts(inside: list[str], outside: list[str], most: int, place: str) -> list[str] | None:
    """The texts that some patterns match and others do not; None if there are more than `most`."""

    def make() -> list[str] | None:
        found = list_texts(
            intersection([*map(_node, inside), *(opposite(_node(one)) for one in outside)]), most
        )
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
        return _limited(lambda: is_empty(intersection(union(map(_node, group)) for group in groups)), "#")
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


# A part of a pattern: ("node", set of texts), ("seq" | "alt", [parts]), ("repeat", part, low, high),
# ("start",), ("end",), ("look", part, is negative). Only what has no anchor and no look-ahead is a set.
_Part = tuple[Any, ...]
_PLAIN_END = ("node", EMPTY)


class _Parser:
    """A pattern on its way to the set of texts in which it finds something."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0

    def parse(self) -> Node:
        """All texts in which the pattern finds something."""
        part = self.read()
        alternatives = part[1] if part[0] == "alt" else [part]
        return union(map(_found_in, alternatives))

    def read(self) -> _Part:
        """The whole pattern."""
        part = self._alternatives()
        if self._at < len(self._text):
            raise _Unknown("a bracket that is not opened")
        if _size(part, 1) > MAX_SIZE:
            raise TooLarge
        return part

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self, text: str) -> bool:
        found = self._text.startswith(text, self._at)
        self._at += len(text) if found else 0
        return found

    def _alternatives(self) -> _Part:
        found = [self._sequence()]
        while self._take("|"):
            found.append(self._sequence())
        if all(part[0] == "node" for part in found):
            return ("node", union(part[1] for part in found))
        return ("alt", found)

    def _sequence(self) -> _Part:
        found: list[_Part] = []
        while self._peek() not in ("", "|", ")"):
            found.append(("start",) if self._take("^") else ("end",) if self._take("$") else self._atom())
        parts: list[_Part] = []
        for is_plain, group in groupby(found, lambda part: part[0] == "node"):
            same = [*group]
            parts += [("node", then(*(part[1] for part in same)))] if is_plain else same
        return parts[0] if len(parts) == 1 else ("seq", parts) if parts else _PLAIN_END

    def _atom(self) -> _Part:
        if self._text.startswith(("(?!", "(?="), self._at):
            is_negative = self._text[self._at + 2] == "!"
            self._at += 3
            return ("look", self._group(), is_negative)
        if self._take("("):
            if self._peek() == "?" and not self._take("?:"):
                raise _Unknown("look-behind or a named group")
            return self._repeated(self._group())
        if self._take("["):
            return self._repeated(("node", characters(self.read_class())))
        if self._take("."):
            return self._repeated(("node", characters(other(((10, 10),)))))
        if self._take("\\"):
            found = self._escape()
            given = found if isinstance(found, tuple) else ((found, found),)
            return self._repeated(("node", characters(given)))
        if self._peek() in tuple("*+?"):
            raise _Unknown("a repetition of nothing")
        character = self._peek()
        self._at += 1
        return self._repeated(("node", characters(((ord(character), ord(character)),))))

    def _group(self) -> _Part:
        """The rest of a group, behind its bracket."""
        inner = self._alternatives()
        if not self._take(")"):
            raise _Unknown("a bracket that is not closed")
        return inner

    def _repeated(self, part: _Part) -> _Part:
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
            return part
        self._take("?")  # as few as possible: the same texts
        if self._peek() in tuple("*+?"):
            raise _Unknown("a repetition of a repetition")
        if max(low, high or 0) > MAX_REPEATS:
            raise TooLarge
        return ("node", repeat(part[1], low, high)) if part[0] == "node" else _unrolled(part, low, high)

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


def _unrolled(part: _Part, low: int, high: int | None) -> _Part:
    """A repetition of what has anchors or looks ahead, as a few parts in a row."""
    if max(low, high or 0) > MAX_UNROLLED:
        raise _Unknown(f"an anchor or look-ahead in more than {MAX_UNROLLED} repetitions")
    rest: _Part = _PLAIN_END
    if high is None:
        if not _only_ends(part):
            raise _Unknown("look-ahead, or ^, in a repetition without end")
        rest = ("repeat", part)
    for _ in range((high or low) - low):
        rest = ("alt", [("seq", [part, rest]), _PLAIN_END])
    return ("seq", [*[part] * low, rest])


def _only_ends(part: _Part) -> bool:
    """Whether `$` is all in a part that makes it no set of texts."""
    if part[0] in ("seq", "alt"):
        return all(map(_only_ends, part[1]))
    return part[0] in ("node", "end") or (part[0] == "repeat" and _only_ends(part[1]))


def _size(part: _Part, rest: int) -> int:
    """A size that the set of a part with what follows has at most, given the size of what follows."""
    kind = part[0]
    if kind == "seq":
        for one in reversed(part[1]):
            rest = min(_size(one, rest), MAX_SIZE + 1)
        return rest
    if kind == "alt":
        return sum(_size(one, rest) for one in part[1])
    if kind in ("look", "repeat"):
        return 2 * _size(part[1], 1) + rest
    return 1 + rest


def _found_in(part: _Part) -> Node:
    """All texts in which a part of a pattern finds something."""
    at_start, later = (_language(part, is_start, lambda _: ALL) for is_start in (True, False))
    if at_start == later:
        return then(ALL, later)
    return union([at_start, then(characters(((0, LAST),)), ALL, later)])


def _language(part: _Part, is_start: bool, rest: Callable[[bool], Node]) -> Node:
    """The texts that a part of a pattern begins, up to the end of the whole text, and `rest` goes on.

    `is_start`: nothing is before them, which is what `rest` is asked for too.
    """
    kind = part[0]
    if kind == "seq":
        for one in reversed(part[1]):
            rest = _followed(one, rest)
        return rest(is_start)
    if kind == "alt":
        return union([_language(one, is_start, rest) for one in part[1]])
    if kind == "start":
        return rest(True) if is_start else NONE
    if kind == "end":
        return EMPTY if has_empty(rest(is_start)) else NONE
    if kind == "look":
        inner = _language(part[1], is_start, lambda _: ALL)
        return intersection([opposite(inner) if part[2] else inner, rest(is_start)])
    if kind == "repeat":  # of what may have `$`: all that comes behind it is empty
        last = _language(part[1], False, lambda _: EMPTY)
        if is_start and rest(True) != rest(False):
            raise _Unknown("^ behind a repetition")
        more = [last] if has_empty(rest(False)) else []
        return then(star(_without_ends(part[1])), union([rest(False), *more]))
    if is_start and has_empty(part[1]) and rest(True) != rest(False):
        return union([rest(True), then(intersection([part[1], opposite(EMPTY)]), rest(False))])
    return then(part[1], rest(False))


def _followed(part: _Part, rest: Callable[[bool], Node]) -> Callable[[bool], Node]:
    return lru_cache(maxsize=2)(lambda is_start: _language(part, is_start, rest))


def _without_ends(part: _Part) -> Node:
    """The texts of a part where it does not stand at the end of a text."""
    if part[0] == "seq":
        return then(*map(_without_ends, part[1]))
    if part[0] == "alt":
        return union(map(_without_ends, part[1]))
    if part[0] == "repeat":
        return star(_without_ends(part[1]))
    found: Node = part[1] if part[0] == "node" else NONE
    return found


def move_anchors(schema: Schema) -> Schema | None:
    """A schema for the same values whose patterns have anchors only at their ends; None if one is too large.

    >>> move_anchors({"pattern": "^a(b|$)$"})
    {'pattern': '^(?:ab?)$'}
    """
    try:
        with limited_work():
            made: Schema = with_patterns(schema, _with_outer_anchors)
    except NotExpressible:
        return None
    return made


def _with_outer_anchors(pattern: str, place: str) -> str:
    """A pattern for the same texts whose anchors stand at its ends, or at those of its alternatives."""
    try:
        part = _Parser(pattern).read()
    except (_Unknown, TooLarge, RecursionError):
        return pattern
    for one in part[1] if part[0] == "alt" else [part]:
        kinds = [inner[0] for inner in one[1]] if one[0] == "seq" else [one[0]]
        kinds = kinds[kinds[0] == "start" :]
        if any(kind != "node" for kind in kinds[: len(kinds) - (kinds[-1:] == ["end"])]):
            found = region([pattern], [], place)
            return r"^[^\s\S]$" if found is None else found
    return pattern


_SURROGATE = re.compile("[\ud800-\udfff]")
_BRACES = re.compile(r"\{(\d+)(,(\d*))?\}")
_CODES = re.compile(r"[xu]\{([0-9A-Fa-f]{1,6})\}|x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})")
_CLASSES: dict[str, Ranges] = {"d": _DIGITS, "D": other(_DIGITS), "w": _WORD, "W": other(_WORD)}
_SPACE = _Parser(f"{SPACES}]").read_class()  # single characters and ranges of them
_CLASSES |= {"s": _SPACE, "S": other(_SPACE)}
