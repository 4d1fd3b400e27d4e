"""JSON schemas without references that the parser has to merge with what stands beside them.

The parser merges a reference with its neighbours by reading the target there. If it meets the same target
again further down, it gives up: the schema is circular. Here the target is written out in place, and the
whole becomes a definition of its own, to which it can refer when it comes again.
"""

from __future__ import annotations

import json
from typing import Any

from stretto.structured.places import ANNOTATIONS, LISTS, MAPS, SINGLE, NotExpressible, Schema, resolve

MAX_SCHEMAS = 5_000  # after inlining
_MERGED = ("allOf", "anyOf")


def inlined(schema: Schema) -> Schema | None:
    """A schema whose references have nothing beside them; None if there is no such one, or a large one only.

    >>> inlined({"$ref": "#/$defs/a", "minimum": 1, "$defs": {"a": {"type": "integer"}}})["allOf"]
    [{'type': 'integer'}]
    """
    if not isinstance(schema, dict) or not isinstance(schema.get("$defs", {}), dict):
        return None
    try:
        return _Inliner(schema).inline_root()
    except NotExpressible:
        return None


class _Inliner:
    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._n_schemas = 0
        self._names: dict[str, str] = {}  # of the definitions that are made, by the schema they are for
        self._open: list[tuple[str, dict[str, Any]]] = []  # those that are still to be made

    def inline_root(self) -> dict[str, Any]:
        made = self._inline(self._root, False, ())
        definitions = {}
        while self._open:
            name, schema = self._open.pop()
            definitions[name] = self._inline(schema, False, ())
        return {**made, "$defs": {**made.get("$defs", {}), **definitions}} if definitions else made

    def _inline(self, schema: Any, is_merged: bool, path: tuple[str, ...]) -> Any:
        """`is_merged`: other schemas are about the same value; `path`: the references on the way here."""
        if not isinstance(schema, dict):
            return schema
        self._n_schemas += 1
        if self._n_schemas > MAX_SCHEMAS:
            raise NotExpressible("#", "too large")
        is_merged = is_merged or _merges(schema)
        if not is_merged or not isinstance(reference := schema.get("$ref"), str):
            return self._inside(schema, is_merged, path)
        target = resolve(self._root, reference)
        if target is None or reference in path:
            raise NotExpressible("#", "a reference that leads nowhere, or round in a circle")
        if isinstance(target, dict):  # its definitions are found at their own place
            target = {key: value for key, value in target.items() if key not in ("$defs", "definitions")}
        beside = self._inside({key: value for key, value in schema.items() if key != "$ref"}, True, path)
        found = self._inline(target, True, (*path, reference))
        return {**beside, "allOf": [*beside.get("allOf", []), found]}

    def _inside(self, schema: dict[str, Any], is_merged: bool, path: tuple[str, ...]) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for key, value in schema.items():
            if key in _MERGED and isinstance(value, list):
                merges = is_merged or (key == "allOf" and len(value) > 1)
                out[key] = [self._inline(part, merges, path) for part in value]
            elif key in LISTS and isinstance(value, list):
                out[key] = [self._other(part) for part in value]
            elif key in SINGLE:
                out[key] = self._other(value)
            elif key in MAPS and isinstance(value, dict):
                out[key] = {name: self._other(part) for name, part in value.items()}
            else:
                out[key] = value
        return out

    def _other(self, schema: Any) -> Any:
        """A schema for another value: a definition where a reference in it is merged."""
        if not isinstance(schema, dict) or not _refers(schema, False):
            return self._inline(schema, False, ())
        key = json.dumps(schema)
        if key not in self._names:
            self._names[key] = f"stretto:m{len(self._names)}"
            self._open.append((self._names[key], schema))
        return {"$ref": f"#/$defs/{self._names[key]}"}


def _merges(schema: dict[str, Any]) -> bool:
    """Whether a schema has several keywords for the same value."""
    return len(schema.keys() - ANNOTATIONS) > 1


def _refers(schema: Any, is_merged: bool) -> bool:
    """Whether there is a reference beside other keywords for the same value."""
    if not isinstance(schema, dict):
        return False
    is_merged = is_merged or _merges(schema)
    if is_merged and "$ref" in schema:
        return True
    return any(
        _refers(part, is_merged or (key == "allOf" and len(schema[key]) > 1))
        for key in _MERGED
        if isinstance(schema.get(key), list)
        for part in schema[key]
    )
