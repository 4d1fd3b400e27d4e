"""The JSON types that a schema allows, as far as its keywords say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ALL = frozenset(("string", "integer", "number", "boolean", "null", "object", "array"))
MAX_DEPTH = 16


def types_of(schema: Any, root: Mapping[str, Any], depth: int = 0) -> frozenset[str]:
    """The types of the values that a schema may allow; `root` has its definitions.

    >>> sorted(types_of({"anyOf": [{"type": "string"}, {"const": None}]}, {}))
    ['null', 'string']
    """
    if not isinstance(schema, Mapping) or depth > MAX_DEPTH:
        return ALL
    types = ALL
    if (kinds := schema.get("type")) is not None:
        types = frozenset([kinds] if isinstance(kinds, str) else kinds) & ALL
        types |= {"integer"} if "number" in types else frozenset()
    if isinstance(schema.get("enum"), (list, tuple)):
        types &= frozenset(type_name(value) for value in schema["enum"])
    if "const" in schema:
        types &= {type_name(schema["const"])}
    if "$ref" in schema:
        types &= types_of(resolved(schema["$ref"], root), root, depth + 1)
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), (list, tuple)):
            parts = [types_of(part, root, depth + 1) for part in schema[key]]
            types &= frozenset().union(*parts)
    for part in schema.get("allOf") or ():
        types &= types_of(part, root, depth + 1)
    return types or ALL


def resolved(reference: Any, root: Mapping[str, Any]) -> Any:
    """The schema that a reference within `root` names; an empty one if there is none."""
    found: Any = root
    if not isinstance(reference, str) or not reference.startswith("#"):
        return {}
    for step in filter(None, reference[1:].split("/")):
        step = step.replace("~1", "/").replace("~0", "~")
        found = found.get(step) if isinstance(found, Mapping) else None
    return {} if found is None else found


def type_name(value: Any) -> str:
    """The JSON type of a value; a whole number is an integer."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else "boolean"
    if isinstance(value, (int, float)):
        return "integer" if float(value).is_integer() else "number"
    return "string" if isinstance(value, str) else "object" if isinstance(value, Mapping) else "array"


def fits(value: Any, types: frozenset[str]) -> bool:
    """Whether a value is of one of these types, and no string."""
    name = type_name(value)
    return name != "string" and (name in types or (name == "integer" and "number" in types))
