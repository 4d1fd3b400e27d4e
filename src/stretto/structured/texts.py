"""Regular expressions for one text, and for every text but some."""

from __future__ import annotations

import re
from collections.abc import Iterable


def other_texts(texts: Iterable[str]) -> str:
    """A regular expression, without anchors, for every text but some: along the tree of their characters.

    >>> other_texts(["a"])
    '(?:|[^a][\\\\s\\\\S]*|a[\\\\s\\\\S]+)'
    """
    return _beside(sorted(set(texts)), 0)


def only(text: str) -> str:
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
