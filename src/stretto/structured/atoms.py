"""JSON schemas in which patterns of properties that overlap are taken apart.

The parser merges objects that are about the same value, and refuses two patterns of theirs that may match
the same name. Here all patterns of a schema are cut into pieces of which no two have a name in common, so
that it meets the same piece or another one.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

from stretto.structured.automata import limited_work
from stretto.structured.negation import both
from stretto.structured.places import LISTS, MAPS, SINGLE, NotExpressible, Schema
from stretto.structured.regular import disjoint, region

MAX_PATTERNS = 12
MAX_ATOMS = 24


def split_patterns(schema: Schema) -> Schema | None:
    """A schema for the same values; None if its patterns do not overlap, or cannot be taken apart.

    >>> parts = {"patternProperties": {"^a": {"type": "null"}}}
    >>> made = split_patterns({"allOf": [parts, {"patternProperties": {"^(a|b)$": True}}]})
    >>> len(made["allOf"][0]["patternProperties"]), len(made["allOf"][1]["patternProperties"])
    (2, 2)
    """
    patterns: set[str] = set()
    _replace(schema, patterns, None)
    with limited_work():
        if len(patterns) > MAX_PATTERNS or all(disjoint(list(pair)) for pair in combinations(patterns, 2)):
            return None
        try:
            made: Schema = _replace(schema, set(), _atoms(sorted(patterns)))
        except NotExpressible:
            return None
    return made


def _atoms(patterns: list[str]) -> dict[str, list[str]]:
    """The pieces of each pattern."""
    pieces: list[tuple[str, list[str]]] = []  # and the patterns that they are pieces of
    for at, pattern in enumerate(patterns):
        cut: list[tuple[str, list[str]]] = []
        for piece, owners in pieces:
            inside, outside = region([piece, pattern], [], "#"), region([piece], [pattern], "#")
            cut += [(inside, [*owners, pattern])] if inside is not None else []
            cut += [(outside, owners)] if outside is not None else []
        rest = region([pattern], patterns[:at], "#")
        pieces = cut + ([(rest, [pattern])] if rest is not None else [])
        if len(pieces) > MAX_ATOMS:
            raise NotExpressible("#", "too many patterns overlap")
    return {pattern: [piece for piece, owners in pieces if pattern in owners] for pattern in patterns}


def _replace(schema: Any, seen: set[str], atoms: dict[str, list[str]] | None) -> Any:
    """A schema with other patterns; those that it has are added to `seen`."""
    if not isinstance(schema, dict):
        return schema
    out = dict(schema)
    for key, value in schema.items():
        if key in MAPS and isinstance(value, dict):
            out[key] = {name: _replace(part, seen, atoms) for name, part in value.items()}
        elif key in LISTS and isinstance(value, list):
            out[key] = [_replace(part, seen, atoms) for part in value]
        elif key in SINGLE:
            out[key] = _replace(value, seen, atoms)
    if isinstance(parts := out.get("patternProperties"), dict):
        seen.update(parts)
        if atoms is not None:
            found: dict[str, list[Schema]] = {}
            for pattern, part in parts.items():
                for piece in atoms[pattern]:
                    found.setdefault(piece, []).append(part)
            out["patternProperties"] = {piece: both(members) for piece, members in found.items()}
    return out
