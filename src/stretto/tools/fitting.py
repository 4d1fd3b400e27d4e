"""Whether a JSON value fits a JSON schema: for calls that a model wrote without a grammar."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isclose
from typing import Any

from stretto.structured.places import NotExpressible
from stretto.structured.regular import matches
from stretto.structured.unique import canonical

Schema = Mapping[str, Any]

MAX_STEPS = 20_000  # schemas that one value is compared with: some refer to themselves
_KINDS: Mapping[str, Any] = {"object": dict, "array": list, "string": str, "number": (int, float)}


def fits(value: Any, schema: Any) -> bool:
    """Whether `value` fits; `format`, and keywords that say nothing about a single value, are not looked at.

    >>> fits({"days": 2.5}, {"properties": {"days": {"type": "integer"}}})
    False
    """
    n_left = MAX_STEPS

    def inner(value: Any, part: Any) -> bool:
        nonlocal n_left
        n_left -= 1
        if isinstance(part, bool) or n_left < 0:
            return part is True
        if "$ref" in part and not inner(value, _target(schema, part["$ref"])):
            return False
        checks = dict(_ALL)
        for kind, more in _OF_KIND.items():
            if has_type(value, kind):
                checks |= more
        return all(check(value, part, inner) for key, check in checks.items() if key in part)

    try:
        return inner(value, schema) and n_left >= 0
    except (ArithmeticError, AttributeError, IndexError, KeyError, RecursionError, TypeError, ValueError):
        return False  # a schema that is none, which is found out where a grammar is made of it


def has_type(value: Any, kind: str) -> bool:
    """Whether a value has a JSON type; 2.0 is an integer, and true no number."""
    if kind == "null":
        return value is None
    if isinstance(value, bool) or kind == "boolean":
        return isinstance(value, bool) and kind == "boolean"
    if kind == "integer":
        return isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    return isinstance(value, _KINDS.get(kind, ()))


def _target(root: Any, reference: str) -> Any:
    """What `#/…` refers to; nothing fits what is not there."""
    found = root
    for part in reference.removeprefix("#").split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, (Mapping, list)):
            return False
        found = found.get(name, False) if isinstance(found, Mapping) else found[int(name)]
    return found if reference.startswith("#") else False


Inner = Callable[[Any, Any], bool]
Check = Callable[[Any, Schema, Inner], bool]


def _has_types(value: Any, schema: Schema, inner: Inner) -> bool:
    kinds = schema["type"]
    return any(has_type(value, kind) for kind in (kinds if isinstance(kinds, list) else [kinds]))


def _is_multiple(value: Any, schema: Schema, inner: Inner) -> bool:
    quotient = value / schema["multipleOf"]
    return isclose(quotient, round(quotient), rel_tol=1e-12, abs_tol=1e-9)


def _is_matched(value: str, schema: Schema, inner: Inner) -> bool:
    return _matches(schema["pattern"], value)


def _matches(pattern: str, text: str) -> bool:
    try:
        return matches(pattern, text, "")
    except NotExpressible:
        return False


def _has_members(value: dict[str, Any], schema: Schema, inner: Inner) -> bool:
    """Each member fits the schemas for its name; those that have none, `additionalProperties`."""
    named, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    for name, one in value.items():
        parts = [part for pattern, part in patterns.items() if _matches(pattern, name)]
        if name in named:
            parts.append(named[name])
        if not all(inner(one, part) for part in parts or [schema.get("additionalProperties", True)]):
            return False
    return True


def _has_items(value: list[Any], schema: Schema, inner: Inner) -> bool:
    first = schema.get("prefixItems", [])
    parts = [*first, *[schema.get("items", True)] * (len(value) - len(first))]
    return all(inner(one, part) for one, part in zip(value, parts, strict=False))


_ALL: Mapping[str, Check] = {
    "type": _has_types,
    "enum": lambda value, schema, inner: canonical(value) in map(canonical, schema["enum"]),
    "const": lambda value, schema, inner: canonical(value) == canonical(schema["const"]),
    "anyOf": lambda value, schema, inner: any(inner(value, part) for part in schema["anyOf"]),
    "oneOf": lambda value, schema, inner: sum(inner(value, part) for part in schema["oneOf"]) == 1,
    "allOf": lambda value, schema, inner: all(inner(value, part) for part in schema["allOf"]),
    "not": lambda value, schema, inner: not inner(value, schema["not"]),
}
_OF_KIND: Mapping[str, Mapping[str, Check]] = {
    "object": {
        "properties": _has_members,
        "patternProperties": _has_members,
        "additionalProperties": _has_members,
        "required": lambda value, schema, inner: all(name in value for name in schema["required"]),
        "minProperties": lambda value, schema, inner: len(value) >= schema["minProperties"],
        "maxProperties": lambda value, schema, inner: len(value) <= schema["maxProperties"],
        "propertyNames": lambda value, schema, inner: all(
            inner(name, schema["propertyNames"]) for name in value
        ),
    },
    "array": {
        "items": _has_items,
        "prefixItems": _has_items,
        "minItems": lambda value, schema, inner: len(value) >= schema["minItems"],
        "maxItems": lambda value, schema, inner: len(value) <= schema["maxItems"],
        "uniqueItems": lambda value, schema, inner: (
            not schema["uniqueItems"] or len(set(map(canonical, value))) == len(value)
        ),
    },
    "string": {
        "minLength": lambda value, schema, inner: len(value) >= schema["minLength"],
        "maxLength": lambda value, schema, inner: len(value) <= schema["maxLength"],
        "pattern": _is_matched,
    },
    "number": {
        "minimum": lambda value, schema, inner: value >= schema["minimum"],
        "maximum": lambda value, schema, inner: value <= schema["maximum"],
        "exclusiveMinimum": lambda value, schema, inner: value > schema["exclusiveMinimum"],
        "exclusiveMaximum": lambda value, schema, inner: value < schema["exclusiveMaximum"],
        "multipleOf": _is_multiple,
    },
}
