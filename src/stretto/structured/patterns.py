"""The patterns of a JSON schema as ECMA 262 reads them, in terms that Rust's `regex` reads in the same way.

White space is what ECMA 262 calls so, an escaped character without a meaning of its own stands for itself,
and brackets within brackets are characters. What only other dialects know (`\\A`, `\\z`, `\\a`) is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from stretto.structured.places import MAPS, NotExpressible, escape_key, schema_error

SPACES = r"\t\n\x0B\x0C\r \xA0\u1680\u2000-\u200A\u2028\u2029\u202F\u205F\u3000\uFEFF"
_OTHERS = (  # all but these
    r"\x00-\x08\x0E-\x1F\x21-\x9F\xA1-\u167F\u1681-\u1FFF\u200B-\u2027\u202A-\u202E\u2030-\u205E"
    r"\u2060-\u2FFF\u3001-\uFEFE\uFF00-\u{10FFFF}"
)
_ANY = r"[\x00-\u{10FFFF}]"
_VALUES = frozenset(("const", "enum", "default", "examples"))  # keywords whose values are no schemas

TOKEN = re.compile(
    r"\\u[Dd][89ABab][0-9A-Fa-f]{2}\\u[Dd][C-Fc-f][0-9A-Fa-f]{2}|\\u\{[0-9A-Fa-f]+\}|\\u[0-9A-Fa-f]{4}"
    r"|\\x[0-9A-Fa-f]{2}|\\c[A-Za-z]|\\[pP]\{\w+(?:=\w+)?\}|\\[0-9]+|\\[\s\S]?|\[\^|[\s\S]"
)
_CLASSES = ("\\d", "\\D", "\\w", "\\W", "\\s", "\\S", "\\p", "\\P")
_KEPT = frozenset("dDwWbBtnvfr")  # letters whose escapes mean the same in Rust
_IN_CLASS = {"[": r"\[", "&": r"\&", "~": r"\~", "-": r"\-"}  # with a meaning of their own in classes of Rust


def ecma_pattern(pattern: str, place: str = "#") -> str:
    r"""A pattern for Rust's `regex` that finds the same texts; the same pattern where it is one already.

    >>> ecma_pattern(r"\<[[]\cA"), ecma_pattern(r"[\s.]") == f"[{SPACES}.]"
    ('<[\\[]\\x01', True)
    """
    pieces: list[str] = []
    at = 0
    while match := TOKEN.match(pattern, at):
        piece, at = match[0], match.end()
        if piece in ("[", "[^"):
            inside, at = _class(pattern, at, place)
            if not inside and piece == "[":
                raise NotExpressible(place, "a pattern with [], which nothing matches")
            piece = f"{piece}{inside}]" if inside else _ANY
        elif piece.startswith("\\"):
            piece = _escape(piece, False, place)
        pieces.append(piece)
    return "".join(pieces)


def _class(pattern: str, at: int, place: str) -> tuple[str, int]:
    """What stands in a class of characters that begins at `at`, and where it ends."""
    pieces: list[str] = []
    # What stands before: nothing that begins a range, a character, a class, or a range without its end.
    before = "none"
    while match := TOKEN.match(pattern, at):
        at = match.end()
        piece = match[0]
        if piece == "[^":
            at, piece = at - 1, "["
        if piece == "]":
            return "".join(pieces), at
        if piece == "-" and before in ("one", "class") and pattern[at : at + 1] != "]":
            piece = "-" if before == "one" else r"\-"
            before = "open"
        else:
            before = "none" if before == "open" else "class" if piece.startswith(_CLASSES) else "one"
            piece = _escape(piece, True, place) if piece.startswith("\\") else _IN_CLASS.get(piece, piece)
        pieces.append(piece)
    raise NotExpressible(place, "a pattern with a class of characters that is not closed")


def _escape(piece: str, is_class: bool, place: str) -> str:
    """An escape as Rust reads it."""
    name = piece[1:2]
    if piece == r"\s":
        return SPACES if is_class else f"[{SPACES}]"
    if piece == r"\S":
        return _OTHERS if is_class else f"[^{SPACES}]"
    if piece == r"\b" and is_class:
        return r"\x08"
    if piece == r"\0":
        return r"\x00"
    if name == "c" and len(piece) == 3:
        return rf"\x{ord(piece[2]) % 32:02X}"
    if len(piece) == 12 and name == "u":  # two halves of a character
        high, low = int(piece[2:6], 16), int(piece[8:], 16)
        return rf"\u{{{0x10000 + ((high - 0xD800) << 10) + low - 0xDC00:X}}}"
    if (len(piece) > 2 and not name.isdigit()) or (name in _KEPT and not (name == "B" and is_class)):
        return piece
    if not name or (name.isascii() and name.isalnum()):
        raise NotExpressible(
            place, f"a pattern with {piece}, which ECMA 262 does not know, or which cannot be followed"
        )
    return name if not name.isascii() or name in "<>" else piece


def with_ecma_patterns(schema: Any) -> Any:
    """A schema whose patterns are for Rust; raises `InvalidGrammar` at one that cannot be read."""
    try:
        return with_patterns(schema, ecma_pattern)
    except NotExpressible as error:
        raise schema_error(error.place, error.reason) from None


def with_patterns(schema: Any, change: Callable[[str, str], str], place: str = "#") -> Any:
    """A schema with other patterns, made from them and their places.

    References may lead anywhere, so that all objects are looked at which are not surely values.
    """
    if isinstance(schema, list):
        return [with_patterns(part, change, f"{place}/{i}") for i, part in enumerate(schema)]
    if not isinstance(schema, dict):
        return schema
    out: dict[str, Any] = {}
    for key, value in schema.items():
        here = f"{place}/{escape_key(key)}"
        if key == "pattern" and isinstance(value, str):
            out[key] = change(value, here)
        elif key in MAPS and isinstance(value, dict):
            out[key] = _with_names(key, value, change, here)
        else:
            out[key] = value if key in _VALUES else with_patterns(value, change, here)
    return out


def _with_names(key: str, parts: dict[str, Any], change: Callable[[str, str], str], place: str) -> Any:
    found: dict[str, Any] = {}
    for name, part in parts.items():
        here = f"{place}/{escape_key(name)}"
        made = with_patterns(part, change, here)
        name = change(name, here) if key == "patternProperties" else name
        found[name] = {"allOf": [found[name], made]} if name in found else made
    return found


# Regular expressions for one text, and for every text but some.


def other_texts(texts: Iterable[str]) -> str:
    """A regular expression, without anchors, for every text but some: along the tree of their characters.

    >>> other_texts(["a"])
    '(?:|[^a][\\\\s\\\\S]*|a[\\\\s\\\\S]+)'
    """
    return _beside(sorted(set(texts)), 0)


def match_only(text: str) -> str:
    """A regular expression for one text and no other."""
    return f"^{''.join(map(_literal, text))}$"


def _beside(texts: list[str], at: int) -> str:
    """For the rest of texts that have the first `at` characters in common."""
    empty = "" if all(len(text) > at for text in texts) else None
    branches: dict[str, list[str]] = {}
    for text in texts:
        if len(text) > at:
            branches.setdefault(text[at], []).append(text)
    anything = r"[\s\S]*"
    if not branches:
        return r"[\s\S]+"
    pieces = [f"[^{''.join(_in_class(character) for character in branches)}]{anything}"]
    for character, rest in branches.items():
        pieces.append(f"{_literal(character)}{_beside(rest, at + 1)}")
    options = ([empty] if empty is not None else []) + pieces
    return f"(?:{'|'.join(options)})"


def _in_class(character: str) -> str:
    return re.sub(r"[^\w ]", lambda match: f"\\x{{{ord(match[0]):X}}}", character)


_literal = _in_class
