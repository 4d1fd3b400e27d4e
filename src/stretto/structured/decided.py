"""JSON schemas for texts without cases that no text fits.

The parser merges patterns and lengths that apply at once, and has to find out whether a text fits them all.
It gives up early where none does. Here the cases of such schemas are written out, those that no text fits are
left out, and small ones become one pattern.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations, pairwise, product
from math import ceil, floor, inf, isinf, lcm
from typing import Any

from stretto.structured.automata import limited_work
from stretto.structured.overlap import name_type
from stretto.structured.places import ANNOTATIONS, LISTS, MAPS, SINGLE, NotExpressible, Schema, resolve
from stretto.structured.regular import disjoint, region
from stretto.structured.workers import check_budget

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


# Numbers that are multiples of some numbers and not of others: the opposite of `multipleOf` is the numbers
# between each two multiples that are next to each other. Those of all conditions together are found here,
# where they are few; of endlessly many, the nearest to 0.

MAX_GAPS = 128  # between multiples, of one case
MAX_NUMBER_CASES = 64

_NUMBER_KEYS = frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"))


@dataclass(frozen=True)
class _Numbers:
    """Numbers between bounds, each with whether it is excluded: multiples of one, and not of others."""

    low: tuple[float, bool] = (-inf, False)
    high: tuple[float, bool] = (inf, False)
    step: int | None = None  # which they are multiples of
    others: frozenset[int] = frozenset()  # which they are no multiples of


def decide_numbers(schema: dict[str, Any], root: Schema) -> Schema | None:
    """A schema for numbers that fit another, all of whose values are numbers; None if it cannot be made.

    >>> decide_numbers({"type": "integer", "minimum": 1, "maximum": 6, "not": {"multipleOf": 2}}, {})
    {'enum': [1, 3, 5]}
    """
    try:
        found = _Numeric(root).cases(schema, True, ())
        parts = [part for case in dict.fromkeys(found) for part in _number_schemas(case)]
    except (NotExpressible, TypeError):
        return None
    values = sorted({part["const"] for part in parts if "const" in part})
    ranges = [part for part in parts if "const" not in part]
    if values:
        ranges.append({"enum": values})
    return ranges[0] if len(ranges) == 1 else {"anyOf": ranges} if ranges else False


def has_excluded_multiples(schema: Any) -> bool:
    """Whether there is a `multipleOf` in a schema, and a keyword that may exclude numbers."""
    text = json.dumps(schema)
    return '"multipleOf": ' in text and ('"not": ' in text or '"oneOf": ' in text)


class _Numeric:
    def __init__(self, root: Schema) -> None:
        self._root = root

    def cases(self, schema: Any, fits: bool, path: tuple[str, ...]) -> list[_Numbers]:
        """The numbers that fit a schema, or do not."""
        if isinstance(schema, bool):
            return [_Numbers()] if schema == fits else []
        check_budget()
        if isinstance(reference := schema.get("$ref"), str):
            target = resolve(self._root, reference)
            if target is None or reference in path:
                raise NotExpressible("#", "a reference that leads nowhere, or round in a circle")
            own = [self.cases(target, fits, (*path, reference))]
        else:
            own = []
        own += [self._of(key, value, schema, fits, path) for key, value in schema.items() if key != "$ref"]
        return self._all(own) if fits else self._any(own)

    def _any(self, groups: list[list[_Numbers]]) -> list[_Numbers]:
        found = list(dict.fromkeys(case for group in groups for case in group))
        if len(found) > MAX_NUMBER_CASES:
            raise NotExpressible("#", "too many cases")
        return found

    def _all(self, groups: list[list[_Numbers]]) -> list[_Numbers]:
        found = [_Numbers()]
        for group in groups:
            both = [_common(left, right) for left, right in product(found, group)]
            found = self._any([[case for case in both if case is not None]])
        return found

    def _of(
        self, key: str, value: Any, schema: dict[str, Any], fits: bool, path: tuple[str, ...]
    ) -> list[_Numbers]:
        """The numbers that fit one keyword, or do not."""
        join, other = (self._all, self._any) if fits else (self._any, self._all)
        if key == "type":
            names = [value] if isinstance(value, str) else value
            if "number" in names or "integer" not in names:
                return [_Numbers()] if ("number" in names) == fits else []
            return [_Numbers(step=1)] if fits else []  # those that are no integers are left out
        if key in ("const", "enum"):
            values = [one for one in ([value] if key == "const" else value) if name_type(one) == "number"]
            points = [_Numbers((one, False), (one, False)) for one in values]
            beside = [[_Numbers(high=(one, True)), _Numbers((one, True))] for one in values]
            return self._any([points]) if fits else self._all(beside)
        if key in _NUMBER_KEYS:
            if isinstance(value, bool):
                raise NotExpressible("#", "a bound that is true or false is that of an older draft")
            return [_bounded(key, value, fits)]
        if key in ("allOf", "anyOf"):
            parts = [self.cases(part, fits, path) for part in value]
            return (join if key == "allOf" else other)(parts)
        if key == "not":
            return self.cases(value, not fits, path)
        if key == "oneOf":
            right = [self.cases(part, True, path) for part in value]
            wrong = [self.cases(part, False, path) for part in value]
            if fits:
                return self._any(
                    [self._all([*wrong[:i], one, *wrong[i + 1 :]]) for i, one in enumerate(right)]
                )
            pairs = [self._all([left, one]) for left, one in combinations(right, 2)]
            return self._any([self._all(wrong), *pairs])
        if key in ("if", "$dynamicRef", "$recursiveRef"):
            raise NotExpressible("#", "another keyword")
        return [_Numbers()] if fits else []  # it says nothing of numbers


def _bounded(key: str, value: float, fits: bool) -> _Numbers:
    if key == "multipleOf":
        if value <= 0 or value % 1:
            raise NotExpressible("#", "a multiple of what is no integer")
        return _Numbers(step=int(value)) if fits else _Numbers(others=frozenset([int(value)]))
    is_excluded = key.startswith("exclusive") == fits
    if key.endswith("inimum") == fits:
        return _Numbers(low=(value, is_excluded))
    return _Numbers(high=(value, is_excluded))


def _common(left: _Numbers, right: _Numbers) -> _Numbers | None:
    """The numbers of both; None if there are none."""
    steps = [one.step for one in (left, right) if one.step is not None]
    step = lcm(*steps) if steps else None
    others = left.others | right.others
    high = min(left.high, right.high, key=lambda bound: (bound[0], not bound[1]))
    found = _Numbers(max(left.low, right.low), high, step, others)
    if any(step is not None and step % other == 0 for other in others):
        return None
    is_empty = found.low[0] > high[0] or (found.low[0] == high[0] and (found.low[1] or high[1]))
    return None if is_empty else found


def _number_schemas(case: _Numbers) -> Iterator[dict[str, Any]]:
    """Schemas for the numbers of a case: between each two multiples, those that are the nearest to 0."""
    edges: list[float] = [-inf, inf]
    if steps := [other if case.step is None else lcm(case.step, other) for other in case.others]:
        width, near = min(steps), floor(min(max(0, case.low[0]), case.high[0]))
        first, last = (near // width - MAX_GAPS) * width, (near // width + MAX_GAPS) * width
        points = {k * step for step in steps for k in range(first // step, last // step + 1)}
        edges = sorted({point for point in points if first <= point <= last} | {first, last})
    for below, above in pairwise(edges):
        part = _between(max(case.low, (below, True)), min(case.high, (above, True), key=_upper), case.step)
        if part is not None:
            yield part


def _upper(bound: tuple[float, bool]) -> tuple[float, bool]:
    """A bound from above, as they are ordered."""
    return bound[0], not bound[1]


def _between(low: tuple[float, bool], high: tuple[float, bool], step: int | None) -> dict[str, Any] | None:
    """A schema for the numbers between two bounds; None if there are none."""
    if low[0] > high[0] or (low[0] == high[0] and (low[1] or high[1])):
        return None
    if step is None:
        if low[0] == high[0]:
            return {"const": low[0]}
        lower = {} if isinf(low[0]) else {"exclusiveMinimum" if low[1] else "minimum": low[0]}
        upper = {} if isinf(high[0]) else {"exclusiveMaximum" if high[1] else "maximum": high[0]}
        return {"type": "number", **lower, **upper}
    out: dict[str, Any] = {"type": "integer"}
    if not isinf(low[0]):
        first = ceil(low[0] / step) if isinstance(low[0], float) else -(-low[0] // step)
        out["minimum"] = (first + (low[1] and first * step == low[0])) * step
    if not isinf(high[0]):
        last = floor(high[0] / step) if isinstance(high[0], float) else high[0] // step
        out["maximum"] = (last - (high[1] and last * step == high[0])) * step
    if (least := out.get("minimum", -inf)) >= (most := out.get("maximum", inf)):
        return {"const": least} if least == most else None
    return out if step == 1 else {**out, "multipleOf": step}
