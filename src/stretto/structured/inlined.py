"""JSON schemas without references that the parser has to merge with what stands beside them.

The parser merges a reference with its neighbours by reading the target there. If it meets the same target
again further down, it gives up: the schema is circular. With targets in place, it meets none twice.
"""

from __future__ import annotations

from typing import Any

from stretto.structured.places import LISTS, MAPS, SINGLE, NotExpressible, Schema, resolve

MAX_SCHEMAS = 5_000  # after inlining
_ANNOTATIONS = frozenset(
    ("title", "description", "default", "examples", "$comment", "$schema", "$defs", "definitions")
)
_MERGED = ("allOf", "anyOf")


def inlined(schema: Schema) -> Schema | None:
    """A schema whose references have nothing beside them; None if it would be too large.

    >>> inlined({"$ref": "#/$defs/a", "minimum": 1, "$defs": {"a": {"type": "integer"}}})["allOf"]
    [{'type': 'integer'}]
    """
    try:
        return _Inliner(schema).inline(schema, False, ())
    except NotExpressible:
        return None


class _Inliner:
    def __init__(self, root: Schema) -> None:
        self._root = root
        self._n_schemas = 0

    def inline(self, schema: Schema, is_merged: bool, path: tuple[str, ...]) -> Schema:
        """`is_merged`: other schemas are about the same value; `path`: the references on the way here."""
        if not isinstance(schema, dict):
            return schema
        self._n_schemas += 1
        if self._n_schemas > MAX_SCHEMAS:
            raise NotExpressible("#", "too large")
        is_merged = is_merged or len(schema.keys() - _ANNOTATIONS) > 1
        if is_merged and isinstance(reference := schema.get("$ref"), str):
            target = resolve(self._root, reference)
            if target is None or reference in path:
                raise NotExpressible("#", "a reference that leads nowhere, or round in a circle")
            rest = {key: value for key, value in schema.items() if key != "$ref"}
            if isinstance(target, dict):  # its definitions are found at their own place
                target = {key: value for key, value in target.items() if key not in ("$defs", "definitions")}
            beside = self._inside(rest, True, path)
            return {
                **beside,
                "allOf": [*beside.get("allOf", []), self.inline(target, True, (*path, reference))],
            }
        return self._inside(schema, is_merged, path)

    def _inside(self, schema: dict[str, Any], is_merged: bool, path: tuple[str, ...]) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for key, value in schema.items():
            if key in _MERGED and isinstance(value, list):
                merges = is_merged or (key == "allOf" and len(value) > 1)
                out[key] = [self.inline(part, merges, path) for part in value]
            elif key in LISTS and isinstance(value, list):
                out[key] = [self.inline(part, False, ()) for part in value]
            elif key in SINGLE:
                out[key] = self.inline(value, False, ())
            elif key in MAPS and isinstance(value, dict):
                out[key] = {name: self.inline(part, False, ()) for name, part in value.items()}
            else:
                out[key] = value
        return out
