"""JSON schemas for texts without cases that no text fits.

The parser merges patterns and lengths that apply at once, and has to find out whether a text fits them all.
It gives up early where none does. Here the cases of such schemas are written out, those that no text fits are
left out, and small ones become one pattern.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from typing import Any

from stretto.structured.automata import limited_work
from stretto.structured.places import ANNOTATIONS, LISTS, MAPS, SINGLE, NotExpressible, Schema, resolve
from stretto.structured.regular import disjoint, region

MAX_CASES = 256  # of one schema
MAX_PRODUCT = 4_096  # before those that no text fits are left out
MAX_PATTERN = 400  # characters of one that stands for several

_TYPES = frozenset(("null", "boolean", "integer", "number", "string", "array", "object"))
_KEYWORDS = frozenset(("type", "pattern", "minLength", "maxLength", "format", "allOf", "anyOf", "$ref"))
_OTHER_TEXTS = frozenset(("const", "$dynamicRef", "$recursiveRef"))  # keywords whose value may be a text


@dataclass(frozen=True)
class _Case:
    """A way in which a value may fit a schema."""

    types: frozenset[str] = _TYPES  # "number": numbers that are no integers
    patterns: frozenset[str] = frozenset()
    formats: frozenset[str] = frozenset()
    lengths: tuple[int, int | None] = field(default=(0, None))


def decide_cases(schema: Schema) -> Schema | None:
    """A schema for the same values; None if there is nothing to decide.

    >>> decide_cases({"type": "string", "anyOf": [{"pattern": "^a$"}, {"pattern": "^b+$"}], "minLength": 2})
    {'type': 'string', 'pattern': '^(?:bb(?:b)*)$'}
    """
    with limited_work():
        made: Schema = _Decider(schema).decide(schema)
    return None if made == schema else made


class _Decider:
    def __init__(self, root: Schema) -> None:
        self._root = root

    def decide(self, schema: Any) -> Any:
        if not isinstance(schema, dict):
            return schema
        if schema.keys() & {"pattern", "minLength", "maxLength", "allOf", "anyOf"}:
            try:
                hidden = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
                found = _written(self._cases(schema, ()))
                if isinstance(found, bool) or not hidden:
                    return found
                return {**found, **{key: self._within(key, value) for key, value in hidden.items()}}
            except NotExpressible:
                pass
        return {key: self._within(key, value) for key, value in schema.items()}

    def _within(self, key: str, value: Any) -> Any:
        if key in LISTS and isinstance(value, list):
            return [self.decide(part) for part in value]
        if key in MAPS and isinstance(value, dict):
            return {name: self.decide(part) for name, part in value.items()}
        return self.decide(value) if key in SINGLE else value

    def _cases(self, schema: Schema, path: tuple[str, ...]) -> list[_Case]:
        """The cases of a schema that is about types and texts only."""
        if isinstance(schema, bool):
            return [_Case()] if schema else []
        for key in schema.keys() - _KEYWORDS - ANNOTATIONS:
            if key in _OTHER_TEXTS or not isinstance(schema[key], str):
                raise NotExpressible("#", "another keyword, and not one that is unknown")
        names = schema.get("type", list(_TYPES))
        types = frozenset([names] if isinstance(names, str) else names)
        own = _Case(
            types=types | ({"integer"} if "number" in types else frozenset()),
            patterns=frozenset([schema["pattern"]] if "pattern" in schema else []),
            formats=frozenset([schema["format"]] if "format" in schema else []),
            lengths=(schema.get("minLength", 0), schema.get("maxLength")),
        )
        groups = [self._cases(part, path) for part in schema.get("allOf", [])]
        if "anyOf" in schema:
            groups.append([case for part in schema["anyOf"] for case in self._cases(part, path)])
        if "$ref" in schema:
            target = resolve(self._root, reference := schema["$ref"])
            if target is None or reference in path:
                raise NotExpressible("#", "a reference that leads nowhere, or round in a circle")
            groups.append(self._cases(target, (*path, reference)))
        found = _possible([own])
        for group in groups:
            if len(found) * len(group) > MAX_PRODUCT:
                raise NotExpressible("#", "too many cases")
            found = _possible([_both(left, right) for left, right in product(found, group)])
            if len(found) > MAX_CASES:
                raise NotExpressible("#", "too many cases")
        return found


def _both(left: _Case, right: _Case) -> _Case:
    ends = [end for _, end in (left.lengths, right.lengths) if end is not None]
    return _Case(
        left.types & right.types,
        left.patterns | right.patterns,
        left.formats | right.formats,
        (max(left.lengths[0], right.lengths[0]), min(ends, default=None)),
    )


def _possible(cases: list[_Case]) -> list[_Case]:
    """The cases that a value fits, each once; where this is not known, a case is kept."""
    found: dict[_Case, None] = {}
    for case in dict.fromkeys(cases):
        if "string" in case.types and _has_no_text(case):
            case = _Case(case.types - {"string"})
        if case.types:
            found[case] = None
    return list(found)


def _constraints(case: _Case) -> list[str]:
    """The patterns of a case, with one for its length."""
    low, high = case.lengths
    length = [] if case.lengths == (0, None) else [f"^[\\s\\S]{{{low},{'' if high is None else high}}}$"]
    return [*sorted(case.patterns), *length]


def _has_no_text(case: _Case) -> bool:
    low, high = case.lengths
    if high is not None and low > high:
        return True
    found = _constraints(case)
    return len(found) > 1 and disjoint(found)


def _written(cases: list[_Case]) -> Schema:
    """A schema of cases."""
    others = frozenset().union(*(case.types for case in cases)) - {"string"}
    parts: list[dict[str, Any]] = [_text(case) for case in cases if "string" in case.types]
    if others:
        names = sorted(others - {"integer"} if "number" in others else others)
        parts.append({"type": names[0] if len(names) == 1 else names})
    distinct = [part for at, part in enumerate(parts) if part not in parts[:at]]
    return distinct[0] if len(distinct) == 1 else {"anyOf": distinct} if distinct else False


def _text(case: _Case) -> dict[str, Any]:
    out: dict[str, Any] = {"type": "string"}
    patterns, lengths = sorted(case.patterns), case.lengths
    if len(found := _constraints(case)) > 1:
        try:
            one = region(found, [], "#")
        except NotExpressible:
            one = None
        if one is not None and len(one) <= MAX_PATTERN:
            patterns, lengths = [one], (0, None)
    if len(patterns) == 1:
        out["pattern"] = patterns[0]
    elif patterns:
        out["allOf"] = [{"pattern": pattern} for pattern in patterns]
    out |= {"minLength": lengths[0]} if lengths[0] else {}
    out |= {"maxLength": lengths[1]} if lengths[1] is not None else {}
    formats = sorted(case.formats)
    if len(formats) == 1:
        out["format"] = formats[0]
    elif formats:
        out["allOf"] = [*out.get("allOf", []), *({"format": name} for name in formats)]
    return out
