"""Deep JSON schemas in pieces: the parser reads JSON that is nested 128 brackets deep, and no deeper."""

from __future__ import annotations

from typing import Any

from stretto.structured.places import LISTS, MAPS, SINGLE, Schema

MAX_DEPTH = 100  # of brackets, before a schema is moved


def shallow(root: Schema) -> Schema:
    """A schema whose deep parts stand in `$defs`; itself if there are none.

    >>> shallow({"items": {"items": True}})
    {'items': {'items': True}}
    """
    own = root.get("$defs", {}) if isinstance(root, dict) else None
    if not isinstance(root, dict) or not isinstance(own, dict) or _depth(root) <= MAX_DEPTH:
        return root
    pieces = _Pieces()
    rest = {key: value for key, value in root.items() if key != "$defs"}
    made = pieces.schema(rest, 1)
    moved = {name: pieces.part(part, 2) for name, part in own.items()}
    while pieces.waiting:
        name, part = pieces.waiting.pop()
        moved[name] = pieces.schema(part, 2)
    return {**made, "$defs": moved} if moved else made


class _Pieces:
    """The schemas that are moved, by their names in `$defs`."""

    def __init__(self) -> None:
        self.waiting: list[tuple[str, dict[str, Any]]] = []
        self._n_moved = 0

    def part(self, schema: Any, depth: int) -> Any:
        """A schema at a depth, or a reference to it."""
        if not isinstance(schema, dict):
            return schema
        if depth < MAX_DEPTH:
            return self.schema(schema, depth)
        self._n_moved += 1
        self.waiting.append((f"stretto:d{self._n_moved}", schema))
        return {"$ref": f"#/$defs/stretto:d{self._n_moved}"}

    def schema(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        """A schema at a depth, with references to what is deep in it."""
        return {key: self._within(key, value, depth) for key, value in schema.items()}

    def _within(self, key: str, value: Any, depth: int) -> Any:
        if key in LISTS and isinstance(value, list):
            return [self.part(part, depth + 2) for part in value]
        if key in SINGLE:
            return self.part(value, depth + 1)
        if key in MAPS and isinstance(value, dict):
            return {name: self.part(part, depth + 2) for name, part in value.items()}
        return value


def _depth(value: Any) -> int:
    """How deep brackets stand in brackets; without recursion."""
    deepest, stack = 0, [(value, 0)]
    while stack:
        one, depth = stack.pop()
        deepest = max(deepest, depth)
        inner = one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
        stack += [(part, depth + 1) for part in inner]
    return deepest
