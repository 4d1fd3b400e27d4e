"""Names of properties: what `propertyNames` asks for, and objects with a name that matches a pattern."""

from __future__ import annotations

from typing import Any

from stretto.structured.overlap import types_of
from stretto.structured.places import NotExpressible, Schema, dereferenced
from stretto.structured.regular import region
from stretto.structured.texts import only

_NAME_KEYWORDS_WORDS = "type pattern minLength maxLength enum const format title description"
_NAME_KEYWORDS = frozenset(_NAME_KEYWORDS_WORDS.split())


def property_names(schema: Schema, root: Schema, place: str) -> list[Schema]:
    """What `propertyNames` asks for: a closed object that has only some names."""
    schema = dereferenced(root, schema, place)
    if isinstance(schema, bool):
        return [] if schema else [{"additionalProperties": False}]
    for key in ("allOf",):
        if key in schema:
            rest = {k: v for k, v in schema.items() if k != key}
            parts = [rest, *schema[key]]
            return [member for part in parts for member in property_names(part, root, place)]
    if "anyOf" in schema and len(schema) == 1:
        parts = [property_names(part, root, place) for part in schema["anyOf"]]
        if all(len(part) == 1 for part in parts):
            return _any_names([part[0] for part in parts], place)
    if "not" in schema:
        rest = {k: v for k, v in schema.items() if k != "not"}
        inner = property_names(schema["not"], root, f"{place}/not")
        return [*property_names(rest or True, root, place), *_other_names(inner, f"{place}/not")]
    if unknown := schema.keys() - _NAME_KEYWORDS - {"$comment", "default", "examples"}:
        raise NotExpressible(f"{place}/{sorted(unknown)[0]}", "this keyword is not supported for names")
    if "string" not in types_of(schema):
        return [{"additionalProperties": False}]
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    patterns = [f"^[\\s\\S]{{{schema.get('minLength', 0)},{schema.get('maxLength', '')}}}$"]
    patterns = patterns if schema.keys() & {"minLength", "maxLength"} else []
    patterns += [schema["pattern"]] if "pattern" in schema else []
    members: list[Schema] = [
        {"patternProperties": {pattern: True}, "additionalProperties": False} for pattern in patterns
    ]
    if values is not None:
        names = {value: True for value in values if isinstance(value, str)}
        members.append({"properties": names, "additionalProperties": False})
    return members


def _any_names(members: list[Schema], place: str) -> list[Schema]:
    """The names that one of several closed objects has."""
    joined: dict[str, Any] = {"properties": {}, "patternProperties": {}, "additionalProperties": False}
    for member in members:
        if not isinstance(member, dict):
            raise NotExpressible(place, "this choice of names is not supported")
        for key in ("properties", "patternProperties"):
            joined[key].update(member.get(key, {}))
    return [{key: value for key, value in joined.items() if value != {}}]


def _other_names(members: list[Schema], place: str) -> list[Schema]:
    """The names that one of several closed objects, which all apply, does not have."""
    found: list[Schema] = []
    for member in members:
        if not isinstance(member, dict):
            raise NotExpressible(place, "this choice of names is not supported")
        names, patterns = member.get("properties", {}), member.get("patternProperties", {})
        others = region([], [*patterns, *map(only, names)], place)
        allowed = {} if others is None else {"patternProperties": {others: True}}
        found.append({**allowed, "additionalProperties": False})
    return found if len(found) == 1 else _any_names(found or [{"additionalProperties": False}], place)


def with_property(name: str, part: Schema) -> Schema:
    """An object that has a property, which fits a schema."""
    return {"type": "object", "required": [name], "properties": {name: part}}


def only_matching(
    pattern: str, part: Schema, known: frozenset[str], required: frozenset[str], place: str
) -> list[Schema]:
    """An object whose properties are those that are required and others, at least one, that match a pattern.

    The others are none of those that are known, and fit `part`.
    """
    others = region([pattern], [only(name) for name in sorted(known | required)], place)
    if others is None:
        return []
    needed = sorted(required)
    return [
        {
            "type": "object",
            "properties": dict.fromkeys(needed, True),
            "required": needed,
            "patternProperties": {others: part},
            "additionalProperties": False,
            "minProperties": len(needed) + 1,
        }
    ]
