"""Proofs that no value fits two JSON schemas at once. A False only says that no proof was found."""

from __future__ import annotations

import json
from itertools import product
from math import inf, prod
from typing import Any

from stretto.structured.formats import APART, WIDE
from stretto.structured.patterns import match_only
from stretto.structured.places import NotExpressible, Schema, dereference
from stretto.structured.regular import disjoint, matches, nothing_common
from stretto.structured.workers import check_budget

TYPES = ("null", "boolean", "number", "string", "array", "object")
MAX_DEPTH = 6
MAX_STEPS = 30_000  # comparisons for one schema
MAX_MEMBERS = 64  # schemas that apply to one value
MAX_COMBINED = 64  # branches of several choices, each with each
_CHOICES = ("anyOf", "oneOf")


def name_type(value: Any) -> str:
    """The JSON type of a value; integers are numbers."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    kinds = {int: "number", float: "number", str: "string", list: "array", dict: "object"}
    return kinds[type(value)]


def are_equal(left: Any, right: Any) -> bool:
    """Whether two JSON values are equal: 1 and 1.0 are, 1 and true are not."""
    if name_type(left) != name_type(right):
        return False
    if isinstance(left, list):
        return len(left) == len(right) and all(map(are_equal, left, right))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(are_equal(left[key], right[key]) for key in left)
    return bool(left == right)


def list_values(schema: Schema) -> list[Any] | None:
    """The values of a schema's `const` or `enum`; None without."""
    if isinstance(schema, dict) and "const" in schema:
        return [schema["const"]]
    if isinstance(schema, dict) and isinstance(schema.get("enum"), list):
        values: list[Any] = schema["enum"]
        return values
    return None


def list_types(schema: Schema) -> frozenset[str]:
    """The types that a schema's own `type`, `const` and `enum` allow."""
    if isinstance(schema, bool):
        return frozenset(TYPES) if schema else frozenset()
    given = schema.get("type", list(TYPES))
    names = [given] if isinstance(given, str) else given
    types = frozenset("number" if name == "integer" else str(name) for name in names)
    values = list_values(schema)
    return types if values is None else types & {name_type(value) for value in values}


class Overlap:
    """Proofs within one schema, whose references it follows."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._n_steps = 0

    def disjoint(self, left: Schema, right: Schema) -> bool:
        """Whether it is proved that no value fits both."""
        return not self.types([left, right])

    def types(self, parts: list[Schema], depth: int = MAX_DEPTH) -> frozenset[str]:
        """The types of values that may fit all of some schemas; for the others there is a proof."""
        check_budget()
        self._n_steps += 1
        every = frozenset(TYPES)
        if self._n_steps > MAX_STEPS or depth == 0:
            return every
        try:
            members = self.members(parts)
        except NotExpressible:
            return every
        if not members:
            return every if members is not None else frozenset()
        found = every.intersection(*map(list_types, members))
        found = frozenset(name for name in found if not self._apart_as(name, members, depth))
        plain = [{key: value for key, value in one.items() if key not in _CHOICES} for one in members]
        choices = [one[key] for one in members for key in _CHOICES if isinstance(one.get(key), list)]
        for branches in choices:
            if found:
                found &= frozenset().union(*(self.types([*plain, part], depth - 1) for part in branches))
        if found and len(choices) > 1 and prod(map(len, choices)) <= MAX_COMBINED:
            combined = (self.types([*plain, *parts], depth - 1) for parts in product(*choices))
            found &= frozenset().union(*combined)
        return found

    def members(self, parts: list[Schema]) -> list[dict[str, Any]] | None:
        """All schemas that fit where `parts` do, without `allOf` and `$ref`; None where nothing fits."""
        members: list[dict[str, Any]] = []
        stack = list(parts)
        while stack:
            one = dereference(self._root, stack.pop())
            if one is False:
                return None
            if isinstance(one, dict):
                single = [key for key in _CHOICES if isinstance(one.get(key), list) and len(one[key]) == 1]
                members.append({key: value for key, value in one.items() if key not in ("allOf", *single)})
                stack += one.get("allOf", [])
                stack += [one[key][0] for key in single]  # a choice of one is none
            if len(members) > MAX_MEMBERS:
                raise NotExpressible("#", "too many schemas apply at once")
        return members

    def names(self, parts: list[Schema], depth: int = MAX_DEPTH) -> frozenset[str] | None:
        """The only properties of objects that fit all of some schemas; None if there may be others."""
        self._n_steps += 1
        if self._n_steps > MAX_STEPS or depth == 0:
            return None
        try:
            members = self.members(parts) or []
        except NotExpressible:
            return None
        closed = [one for one in members if one.get("additionalProperties") is False]
        named = [frozenset(one.get("properties", {})) for one in closed if not one.get("patternProperties")]
        named += [frozenset().union(*keys) for one in members if (keys := _keys_of(one)) is not None]
        for branches in [one[key] for one in members for key in _CHOICES if isinstance(one.get(key), list)]:
            found = [self.names([part], depth - 1) for part in branches if "object" in self._own(part)]
            if None not in found:
                named.append(frozenset().union(*(names for names in found if names is not None)))
        return frozenset.intersection(*named) if named else None

    def required(self, parts: list[Schema]) -> frozenset[str]:
        """Properties that all objects have that fit all of some schemas."""
        try:
            members = self.members(parts) or []
        except NotExpressible:
            return frozenset()
        asked = {name for one in members for name in one.get("required", []) if isinstance(name, str)}
        given = [keys for one in members if (keys := _keys_of(one))]
        return frozenset(asked).union(*(frozenset.intersection(*keys) for keys in given))

    def most_properties(self, parts: list[Schema]) -> int | None:
        """How many properties an object may have that fits all of some schemas; None if any number."""
        try:
            members = self.members(parts) or []
        except NotExpressible:
            return None
        given = [one["maxProperties"] for one in members if isinstance(one.get("maxProperties"), int)]
        return min(given, default=None)

    def bounds(self, parts: list[Schema]) -> tuple[float, float]:
        """Numbers between which all numbers are that fit all of some schemas."""
        try:
            members = self.members(parts) or []
        except NotExpressible:
            members = []
        lows = [_bound(one, "minimum", "exclusiveMinimum", 1)[0] for one in members]
        highs = [_bound(one, "maximum", "exclusiveMaximum", -1)[0] for one in members]
        return max(lows, default=-inf), min(highs, default=inf)

    def _own(self, schema: Schema) -> frozenset[str]:
        """The types that a schema's own keywords allow."""
        try:
            return list_types(dereference(self._root, schema))
        except NotExpressible:
            return frozenset(TYPES)

    def parts(self, parts: list[Schema]) -> frozenset[tuple[str, str]]:
        """The schemas, as JSON, that properties of objects fit, with the names of these."""
        try:
            members = self.members(parts) or []
        except NotExpressible:
            return frozenset()
        listed = [one["properties"] for one in members if isinstance(one.get("properties"), dict)]
        return frozenset((name, json.dumps(part)) for found in listed for name, part in found.items())

    def _apart_as(self, name: str, members: list[dict[str, Any]], depth: int) -> bool:
        """Whether no value of one type fits all of some schemas."""
        given = [values for one in members if (values := list_values(one)) is not None]
        if given:
            others = given[1:]
            return not any(
                name_type(value) == name
                and all(any(are_equal(value, item) for item in values) for values in others)
                and not any(_refuses(one, value) for one in members)
                for value in given[0]
            )
        if name == "number":
            return _ranges_apart(members)
        if name == "string":
            return (
                _sizes_apart(members, "minLength", "maxLength")
                or _formats_apart(members)
                or _patterns_apart(members)
            )
        if name == "array":
            return _sizes_apart(members, "minItems", "maxItems") or self._items_apart(members, depth)
        if name == "object":
            return self._keys_apart(members, depth)
        return False

    def _items_apart(self, members: list[dict[str, Any]], depth: int) -> bool:
        n = max(one.get("minItems", 0) for one in members)
        return any(
            not self.types([_item(one, index) for one in members], depth - 1) for index in range(min(n, 8))
        )

    def _keys_apart(self, members: list[dict[str, Any]], depth: int) -> bool:
        """By a key that one of the schemas requires, or where there must be some and may be none."""
        required = {key for one in members for key in one.get("required", []) if isinstance(key, str)}
        if _names_apart(members) or any(_forbids_all(one, required) for one in members):
            return True
        return any(
            not self.types([part for one in members for part in property_schemas(one, key)], depth - 1)
            for key in sorted(required)
        )


def _refuses(schema: dict[str, Any], value: Any) -> bool:
    """Whether a schema's own pattern, size or bounds refuse a text or a number."""
    if isinstance(value, str):
        low, high = schema.get("minLength", 0), schema.get("maxLength", inf)
        if not low <= len(value) <= high:
            return True
        try:
            return isinstance(schema.get("pattern"), str) and not matches(schema["pattern"], value, "#")
        except NotExpressible:
            return False
    if name_type(value) == "number":
        least, most = (
            _bound(schema, "minimum", "exclusiveMinimum", 1),
            _bound(schema, "maximum", "exclusiveMaximum", -1),
        )
        return not least <= (value, 0) <= most
    return False


def _keys_of(schema: dict[str, Any]) -> list[frozenset[str]] | None:
    """The names of the objects among the values of a `const` or `enum`; None without."""
    values = list_values(schema)
    return None if values is None else [frozenset(value) for value in values if isinstance(value, dict)]


def _names_apart(members: list[dict[str, Any]]) -> bool:
    """Whether objects have a property, and closed ones no name in common."""
    closed = [one for one in members if one.get("additionalProperties") is False]
    if not closed or all(one.get("minProperties", 0) < 1 for one in members):
        return False
    return nothing_common(
        [[*map(match_only, one.get("properties", {})), *one.get("patternProperties", {})] for one in closed]
    )


def _forbids_all(schema: dict[str, Any], required: set[str]) -> bool:
    """Whether a schema says that an object must not have all of some names that it has."""
    unwanted = schema.get("not")
    if not isinstance(unwanted, dict) or unwanted.keys() - {"type"} != {"required"}:
        return False
    return unwanted.get("type", "object") == "object" and required.issuperset(unwanted["required"])


def property_schemas(schema: dict[str, Any], key: str) -> list[Schema]:
    """The schemas that a property fits, or fewer of them."""
    found = [schema["properties"][key]] if key in schema.get("properties", {}) else []
    for pattern, part in schema.get("patternProperties", {}).items():
        try:
            found += [part] if matches(pattern, key, "#") else []
        except NotExpressible:
            return found
    rest = schema.get("additionalProperties", True)
    return found or ([rest] if isinstance(rest, (dict, bool)) else [])


def _item(schema: dict[str, Any], index: int) -> Schema:
    prefix, items = schema.get("prefixItems", []), schema.get("items", True)
    if index < len(prefix):
        found: Schema = prefix[index]
        return found
    return items if isinstance(items, (dict, bool)) else True


def _sizes_apart(members: list[dict[str, Any]], low: str, high: str) -> bool:
    least = max(one.get(low, 0) for one in members)
    return bool(min(one.get(high, float("inf")) for one in members) < least)


def _formats_apart(members: list[dict[str, Any]]) -> bool:
    names = {str(one["format"]) for one in members if "format" in one}
    return any(names >= pair for pair in APART)


def _patterns_apart(members: list[dict[str, Any]]) -> bool:
    patterns = {one["pattern"] for one in members if isinstance(one.get("pattern"), str)}
    patterns |= {WIDE[name] for one in members if isinstance(name := one.get("format"), str) and name in WIDE}
    return len(patterns) > 1 and disjoint(sorted(patterns))


def _ranges_apart(members: list[dict[str, Any]]) -> bool:
    lows = [_bound(one, "minimum", "exclusiveMinimum", 1) for one in members]
    highs = [_bound(one, "maximum", "exclusiveMaximum", -1) for one in members]
    return max(lows) > min(highs)


def _bound(schema: dict[str, Any], key: str, exclusive: str, side: int) -> tuple[float, int]:
    """A bound and the side of it that counts: (3, 1) is above 3."""
    value, strict = schema.get(key), schema.get(exclusive)
    found = [] if value is None else [(value, side if strict is True else 0)]
    if strict is not None and not isinstance(strict, bool):
        found.append((strict, side))
    if not found:
        return (-side * float("inf"), 0)
    return max(found) if side > 0 else min(found)
