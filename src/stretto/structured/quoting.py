"""Patterns that the parser may put into quotes.

The parser (llguidance 1.9) lets a class of characters that has all control characters match a quote and a
backslash within a JSON text, also if it lacks them: `[^"]` would match a quote. So a class that lacks one of
them gets no U+001F, and is exact otherwise; any union or intersection of such classes is one as well.
"""

from __future__ import annotations

import json
import re
from typing import Any

from stretto.structured.automata import Ranges, ranges
from stretto.structured.ecma import TOKEN, with_patterns
from stretto.structured.expressions import class_of
from stretto.structured.regular import class_ranges

_CODE = 0x1F
_PATTERN = re.compile(r'"pattern(Properties)?": ')
_TOKEN = re.compile(rf"\\[xu]\{{[0-9A-Fa-f]+\}}|{TOKEN.pattern}")
_ALONE = re.compile(r"[\x1F]|\\x1[fF]|\\u001[fF]|\\[xu]\{0*1[fF]\}")
_NOTHING = r"[^\s\S]"


def with_quotable_patterns(text: str) -> str:
    """The text of a schema whose patterns mean the same within quotes."""
    if not _PATTERN.search(text):
        return text
    schema: Any = json.loads(text)
    made = with_patterns(schema, lambda pattern, _: quotable(pattern))
    return text if made == schema else json.dumps(made, ensure_ascii=False)


def quotable(pattern: str) -> str:
    """A pattern in which classes that lack a quote or a backslash have no U+001F.

    >>> quotable('^[^"]$'), quotable("^[^a]$")
    ('^[^\\\\x1F\\\\x22]$', '^[^a]$')
    """
    pieces: list[str] = []
    at = 0
    while match := _TOKEN.match(pattern, at):
        piece, at = match[0], match.end()
        if piece in ("[", "[^"):
            start, at = match.start(), _end(pattern, at)
            piece = _quotable_class(pattern[start:at])
        elif _ALONE.fullmatch(piece):
            piece = _NOTHING
        elif piece.startswith((r"\p{", r"\P{")):
            piece = _quotable_class(f"[{piece}]")
        pieces.append(piece)
    return "".join(pieces)


def _end(pattern: str, at: int) -> int:
    """Where a class ends whose bracket is before `at`."""
    while (match := _TOKEN.match(pattern, at)) and match[0] != "]":
        at = match.end()
    return at + 1


def _quotable_class(text: str) -> str:
    found = class_ranges(text)
    if found is None:  # properties of characters
        return f"[{text}&&[^\\x1F]]"
    if not _has(found, _CODE) or (_has(found, ord('"')) and _has(found, ord("\\"))):
        return text
    kept = [(low, min(high, _CODE - 1)) for low, high in found if low < _CODE]
    kept += [(max(low, _CODE + 1), high) for low, high in found if high > _CODE]
    return class_of(ranges(kept)) if kept else _NOTHING


def _has(given: Ranges, code: int) -> bool:
    return any(low <= code <= high for low, high in given)
