"""Patterns that the parser may put into quotes.

The parser (llguidance 1.9) lets a class of characters that has all control characters match a quote and a
backslash within a JSON text, also if it lacks them: `[^"]` would match a quote. So a class that lacks one of
them gets no U+001F, and is exact otherwise; any union or intersection of such classes is one as well.
"""

from __future__ import annotations

import json
import re
from typing import Any

from stretto.structured.automata import Ranges, ranges, write_class
from stretto.structured.patterns import TOKEN, other_texts, with_patterns
from stretto.structured.places import LISTS, MAPS, SINGLE
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
    made = with_patterns(schema, lambda pattern, _: make_quotable(pattern))
    return text if made == schema else json.dumps(made, ensure_ascii=False)


def make_quotable(pattern: str) -> str:
    """A pattern in which classes that lack a quote or a backslash have no U+001F.

    >>> make_quotable('^[^"]$'), make_quotable("^[^a]$")
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
    return write_class(ranges(kept)) if kept else _NOTHING


def _has(given: Ranges, code: int) -> bool:
    return any(low <= code <= high for low, high in given)


# Keys of open objects, in a spelling that cannot hide a known one.
#
# The parser compares keys as they are written. Where an object names properties and may have others, it
# lets `"\u0066oo"` pass as another name than `foo`, and its value would escape the schema of `foo`. Keys
# that a pattern describes have no needless escapes, so other names become such keys.

ANY_KEY = r"^[\s\S]*$"
_CHOICES = ("anyOf", "oneOf")
_ELSEWHERE = {"$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "if"}  # where more properties may be named
_TOGETHER = ("properties", "patternProperties", "additionalProperties")


def with_plain_keys(text: str) -> str:
    """The text of a schema in which other names than those of `properties` have no needless escapes.

    >>> json.loads(with_plain_keys('{"properties": {"a": {}}}'))["additionalProperties"]
    False
    """
    if '"properties"' not in text:
        return text
    return json.dumps(_plain(json.loads(text)), ensure_ascii=False, allow_nan=False)


def with_surely_plain_keys(text: str) -> str:
    """As `with_plain_keys`, where the parser is sure to take the result; the text itself otherwise.

    It takes no two patterns that overlap, and there are none if all of them are for any key.
    """
    if '"patternProperties"' in text:
        return text
    try:
        made = with_plain_keys(text)
    except ValueError:  # a number too large for a float
        return text
    return made if made.count('"patternProperties"') == made.count(json.dumps(ANY_KEY)) else text


def _plain(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    out = {key: _within(key, value) for key, value in schema.items()}
    names, others = out.get("properties"), out.get("additionalProperties", True)
    own = {key: out[key] for key in _TOGETHER if key in out}
    if isinstance(names, dict) and names and others is not False and "patternProperties" not in out:
        pattern = ANY_KEY if others in (True, {}) else f"^{other_texts(names)}$"
        own = {"properties": names, "patternProperties": {pattern: others}, "additionalProperties": False}
    if "properties" not in own:
        return out
    # The parser reads keywords in order, and that is the order of the properties they name.
    made: dict[str, Any] = {}
    for key, value in out.items():
        if key == "properties" or (key in _CHOICES and _adds_no_names(value, own["properties"])):
            made |= own  # a choice among them that names no others keeps their order
        if key not in own:
            made[key] = value
    return made


def _adds_no_names(choices: Any, names: Any) -> bool:
    """Whether choices, as they stand, name no properties but those that an object has itself."""
    listed = choices if isinstance(choices, list) and isinstance(names, dict) else [None]
    return all(
        isinstance(one, dict) and not _ELSEWHERE & one.keys() and _names(one) <= set(names) for one in listed
    )


def _names(schema: dict[str, Any]) -> set[str]:
    named = schema.get("properties")
    return set(named) if isinstance(named, dict) else set()


def _within(key: str, value: Any) -> Any:
    if key in LISTS and isinstance(value, list):
        return [_plain(item) for item in value]
    if key in SINGLE:
        return _plain(value)
    if key in MAPS and isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return value
