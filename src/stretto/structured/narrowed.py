"""JSON schemas for values of which something is known: what cannot matter to these is left out."""

from __future__ import annotations

from typing import Any

from stretto.structured.negation import both
from stretto.structured.overlap import Overlap, property_schemas
from stretto.structured.places import Schema, dereferenced
from stretto.structured.regular import matches

MAX_NAMES = 32
MAX_DEPTH = 8
_OBJECT_KEYWORDS = ("properties", "patternProperties", "additionalProperties")


def narrowed(schema: Schema, fits: list[Schema], root: Schema, overlap: Overlap, depth: int = 0) -> Schema:
    """A schema that says the same as another of values that fit all of `fits`, and anything of others.

    >>> number, text = {"type": "number"}, {"type": "string", "minLength": 2}
    >>> narrowed({"oneOf": [number, text]}, [{"type": "string"}], {}, Overlap({}))
    {'oneOf': [{'type': 'string', 'minLength': 2}]}
    """
    schema = dereferenced(root, schema)
    if isinstance(schema, bool) or depth > MAX_DEPTH:
        return schema
    out = dict(schema)
    for key in ("anyOf", "oneOf"):
        if isinstance(branches := schema.get(key), list):
            out[key] = [part for part in branches if overlap.types([part, *fits])]
            if not out[key]:
                return False
    for key in ("allOf", "anyOf", "oneOf"):
        if isinstance(out.get(key), list):
            out[key] = [narrowed(part, fits, root, overlap, depth + 1) for part in out[key]]
    names = overlap.names(fits)
    members = overlap.members(fits)
    if names is None or not members or len(names) > MAX_NAMES or not schema.keys() & set(_OBJECT_KEYWORDS):
        return out
    # All names are known: each gets what is about it, and there are no others.
    out = {key: value for key, value in out.items() if key not in _OBJECT_KEYWORDS}
    parts: dict[str, Schema] = {}
    for name in sorted(names):
        known = [part for member in members for part in property_schemas(member, name)]
        own = [narrowed(part, known, root, overlap, depth + 1) for part in about(schema, name)]
        if (part := both(own)) is not True:
            parts[name] = part
    return {**out, "properties": parts}


def about(schema: dict[str, Any], name: str) -> list[Schema]:
    """The schemas of a property."""
    found = [schema["properties"][name]] if name in schema.get("properties", {}) else []
    patterns = schema.get("patternProperties", {})
    found += [part for pattern, part in patterns.items() if matches(pattern, name, "#")]
    return found or [schema.get("additionalProperties", True)]
