"""Closed objects: properties that a schema does not name are forbidden, unless it says otherwise."""

from __future__ import annotations

from typing import Any

from stretto.structured.places import LISTS, MAPS, SINGLE, NotExpressible, Schema, dereferenced

_OPEN_WORDS = "additionalProperties patternProperties unevaluatedProperties propertyNames"
_OPEN = frozenset(_OPEN_WORDS.split())
# The schemas under these describe the same value.
_SAME_LISTS = ("allOf", "anyOf", "oneOf")
_SAME = frozenset({*_SAME_LISTS, "not", "if", "then", "else", "dependentSchemas", "dependencies"})
MAX_DEPTH = 100


def closed_objects(schema: Any) -> Any:
    """A schema whose objects have only properties that are named, in it or in its branches.

    >>> closed_objects({"properties": {"a": {}}})
    {'properties': {'a': {}}, 'additionalProperties': False}
    """
    return _closed(schema, schema, is_part=False)


def _closed(schema: Any, root: Schema, is_part: bool) -> Any:
    """`is_part`: the schema stands in a branch of one that is closed itself."""
    if not isinstance(schema, dict):
        return schema
    names = None if is_part else _names(schema, root, MAX_DEPTH)
    closes = bool(names)
    out = {key: _within(key, value, root, is_part or closes) for key, value in schema.items()}
    if closes and names is not None:
        if names <= schema.get("properties", {}).keys():
            out["additionalProperties"] = False
        else:
            listed = {"properties": dict.fromkeys(sorted(names), True), "additionalProperties": False}
            out["allOf"] = [*out.get("allOf", []), listed]
    return out


def _within(key: str, value: Any, root: Schema, is_part: bool) -> Any:
    part = is_part and key in _SAME
    if key in LISTS and isinstance(value, list):
        return [_closed(item, root, part) for item in value]
    if key in SINGLE:
        return _closed(value, root, part)
    if key in MAPS and isinstance(value, dict):
        return {name: _closed(item, root, part) for name, item in value.items()}
    return value


def _names(schema: Schema, root: Schema, depth: int) -> set[str] | None:
    """The properties that a schema and its branches name; None if one of them says what others may be."""
    if isinstance(schema, bool) or depth == 0:
        return set()
    if schema.keys() & _OPEN:
        return None
    found = set(schema.get("properties", {}))
    parts = [part for key in _SAME_LISTS for part in schema.get(key, [])]
    parts += [schema[key] for key in ("if", "then", "else") if key in schema]
    parts += [part for part in schema.get("dependentSchemas", {}).values() if isinstance(part, dict)]
    if "$ref" in schema:
        try:
            parts.append(dereferenced(root, {"$ref": schema["$ref"]}))
        except NotExpressible:
            return None
    for part in parts:
        names = _names(part, root, min(depth - 1, 8))
        if names is None:
            return None
        found |= names
    return found
