"""Proofs that no value fits two JSON schemas at once. A False only says that no proof was found."""

from __future__ import annotations

from typing import Any

from stretto.structured.places import NotExpressible, Schema, dereferenced

TYPES = ("null", "boolean", "number", "string", "array", "object")
MAX_DEPTH = 6
MAX_STEPS = 30_000  # comparisons for one schema


def type_of(value: Any) -> str:
    """The JSON type of a value; integers are numbers."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    kinds = {int: "number", float: "number", str: "string", list: "array", dict: "object"}
    return kinds[type(value)]


def same(left: Any, right: Any) -> bool:
    """Whether two JSON values are equal: 1 and 1.0 are, 1 and true are not."""
    if type_of(left) != type_of(right):
        return False
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    return bool(left == right)


def values_of(schema: Schema) -> list[Any] | None:
    """The values of a schema's `const` or `enum`; None without."""
    if isinstance(schema, dict) and "const" in schema:
        return [schema["const"]]
    if isinstance(schema, dict) and isinstance(schema.get("enum"), list):
        values: list[Any] = schema["enum"]
        return values
    return None


def types_of(schema: Schema) -> frozenset[str]:
    """The types that a schema's own `type`, `const` and `enum` allow."""
    if isinstance(schema, bool):
        return frozenset(TYPES) if schema else frozenset()
    given = schema.get("type", list(TYPES))
    names = [given] if isinstance(given, str) else given
    types = frozenset("number" if name == "integer" else str(name) for name in names)
    values = values_of(schema)
    return types if values is None else types & {type_of(value) for value in values}


class Overlap:
    """Proofs within one schema, whose references it follows."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._n_steps = 0

    def disjoint(self, left: Schema, right: Schema, depth: int = MAX_DEPTH) -> bool:
        """Whether it is proved that no value fits both."""
        self._n_steps += 1
        if self._n_steps > MAX_STEPS:
            return False
        try:
            left, right = dereferenced(self._root, left), dereferenced(self._root, right)
        except NotExpressible:
            return False
        if left is False or right is False:
            return True
        if depth == 0 or isinstance(left, bool) or isinstance(right, bool):
            return False
        return (
            self._apart(left, right, depth)
            or self._split(left, right, depth)
            or self._split(right, left, depth)
        )

    def _split(self, left: dict[str, Any], right: dict[str, Any], depth: int) -> bool:
        """By the parts of one of the two: one member of `allOf`, every branch of a choice."""
        if any(self.disjoint(part, right, depth - 1) for part in left.get("allOf", [])):
            return True
        return any(
            bool(left.get(key)) and all(self.disjoint(part, right, depth - 1) for part in left[key])
            for key in ("anyOf", "oneOf")
        )

    def _apart(self, left: dict[str, Any], right: dict[str, Any], depth: int) -> bool:
        shared = types_of(left) & types_of(right)
        return all(self._apart_as(name, left, right, depth) for name in shared)

    def _apart_as(self, name: str, left: dict[str, Any], right: dict[str, Any], depth: int) -> bool:
        """Whether no value of one type fits both."""
        mine, others = values_of(left), values_of(right)
        if mine is not None and others is not None:
            return not any(same(a, b) for a in mine for b in others if type_of(a) == name)
        if name == "number":
            return _ranges_apart(left, right)
        if name == "string":
            return _sizes_apart(left, right, "minLength", "maxLength")
        if name == "array":
            return _sizes_apart(left, right, "minItems", "maxItems") or self._items_apart(left, right, depth)
        if name == "object":
            return self._keys_apart(left, right, depth) or self._keys_apart(right, left, depth)
        return False

    def _items_apart(self, left: dict[str, Any], right: dict[str, Any], depth: int) -> bool:
        n = max(left.get("minItems", 0), right.get("minItems", 0))
        return any(
            self.disjoint(_item(left, index), _item(right, index), depth - 1) for index in range(min(n, 8))
        )

    def _keys_apart(self, left: dict[str, Any], right: dict[str, Any], depth: int) -> bool:
        """By a key that `left` requires."""
        return any(
            self.disjoint(_property(left, key), _property(right, key), depth - 1)
            for key in left.get("required", [])
            if isinstance(key, str)
        )


def _property(schema: dict[str, Any], key: str) -> Schema:
    """The schema of a property, or one that allows more."""
    listed = schema.get("properties", {})
    if key in listed:
        found: Schema = listed[key]
        return found
    if "patternProperties" in schema or not isinstance(schema.get("additionalProperties"), (dict, bool)):
        return True
    rest: Schema = schema["additionalProperties"]
    return rest


def _item(schema: dict[str, Any], index: int) -> Schema:
    prefix, items = schema.get("prefixItems", []), schema.get("items", True)
    if index < len(prefix):
        found: Schema = prefix[index]
        return found
    return items if isinstance(items, (dict, bool)) else True


def _sizes_apart(left: dict[str, Any], right: dict[str, Any], low: str, high: str) -> bool:
    most = min(left.get(high, float("inf")), right.get(high, float("inf")))
    return bool(most < max(left.get(low, 0), right.get(low, 0)))


def _ranges_apart(left: dict[str, Any], right: dict[str, Any]) -> bool:
    lows = [_bound(schema, "minimum", "exclusiveMinimum", 1) for schema in (left, right)]
    highs = [_bound(schema, "maximum", "exclusiveMaximum", -1) for schema in (left, right)]
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
