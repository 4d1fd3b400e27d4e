"""Keywords of objects in terms that the parser can follow: numbers of properties, dependencies."""

from __future__ import annotations

from itertools import combinations
from math import comb
from typing import Any

from stretto.structured.negation import both, either
from stretto.structured.overlap import TYPES
from stretto.structured.places import NotExpressible, Schema
from stretto.structured.texts import other_texts

MAX_BRANCHES = 200
NO_OBJECT: Schema = {"type": [name for name in TYPES if name != "object"]}


def dependencies(given: dict[str, Any]) -> list[Schema]:
    """What `dependentRequired`, `dependentSchemas` and the older `dependencies` ask for."""
    members: list[Schema] = []
    for name, needed in given.items():
        absent: Schema = {"properties": {name: False}}
        if isinstance(needed, list):
            members += [either([absent, {"required": [other]}]) for other in needed if other != name]
        else:
            members.append(either([absent, both([{"required": [name]}, needed])]))
    return members


def counts(schema: dict[str, Any], place: str) -> list[Schema] | None:
    """What `minProperties` and `maxProperties` ask for beside optional properties; None if they may stay."""
    listed = schema.get("properties", {})
    required = [name for name in schema.get("required", []) if isinstance(name, str)]
    optional = [name for name in listed if name not in required and listed[name] is not False]
    low, high = int(schema.get("minProperties", 0)), schema.get("maxProperties")
    if not optional:
        return None
    if low <= len(required) and high is None:
        return []
    is_closed = schema.get("additionalProperties") is False and "patternProperties" not in schema
    if not is_closed:
        if low == len(required) + 1 and high is None and not required:
            return [_one_property(schema, list(listed), optional)]
        raise NotExpressible(
            place, "a number of properties beside optional ones needs additionalProperties: false"
        )
    return [_closed_counts(required, optional, low, high, place)]


def _closed_counts(
    required: list[str], optional: list[str], low: int, high: int | None, place: str
) -> Schema:
    n_low = max(0, low - len(required))
    n_high = len(optional) if high is None else min(len(optional), int(high) - len(required))
    if n_low > n_high or n_high < 0:
        return NO_OBJECT
    if comb(len(optional), n_high) * comb(n_high, n_low) > MAX_BRANCHES:
        raise NotExpressible(place, f"this would be more than {MAX_BRANCHES} cases; use fewer properties")
    branches: list[Schema] = []
    for chosen in combinations(optional, n_high):
        absent = {name: False for name in optional if name not in chosen}
        for present in combinations(chosen, n_low):
            branch: dict[str, Any] = {"type": "object", "required": list(present)}
            branches.append({**branch, "properties": absent} if absent else branch)
    return either([NO_OBJECT, *branches])


def _one_property(schema: dict[str, Any], listed: list[str], optional: list[str]) -> Schema:
    """At least one property of an open object: one that is listed, or one of another name."""
    others: Schema = {
        "type": "object",
        "patternProperties": {f"^{other_texts(listed)}$": True},
        "additionalProperties": False,
        "minProperties": 1,
    }
    present: list[Schema] = [{"type": "object", "required": [name]} for name in optional]
    return either([NO_OBJECT, *present, others])
