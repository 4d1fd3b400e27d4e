"""References to schemas in places where a schema has none, such as under a keyword that is unknown."""

from __future__ import annotations

from typing import Any

from stretto.structured.places import LISTS, MAPS, SINGLE, Schema, escaped, resolve


def gathered(root: Schema) -> Schema:
    """A schema whose references lead to places of schemas: what stands elsewhere is copied to `$defs`.

    >>> made = gathered({"$ref": "#/kinds/a", "kinds": {"a": {"type": "null"}}})
    >>> made["$ref"], made["$defs"]
    ('#/$defs/kinds~1a', {'kinds/a': {'type': 'null'}})
    """
    strays = _Strays(root)
    made = strays.rewrite(root)
    if not strays.names or not isinstance(made, dict):
        return root
    copies: dict[str, Any] = {}
    while waiting := strays.names.keys() - copies.keys():
        copies |= {pointer: strays.rewrite(resolve(root, pointer)) for pointer in sorted(waiting)}
    own = made.get("$defs", {})
    return {**made, "$defs": {**own, **{strays.names[pointer]: part for pointer, part in copies.items()}}}


class _Strays:
    """The places that references lead to, and the names that they get in `$defs`."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        own = root.get("$defs", {}) if isinstance(root, dict) else {}
        self._taken = set(own) if isinstance(own, dict) else None
        self.names: dict[str, str] = {}  # by pointer

    def rewrite(self, schema: Any) -> Any:
        """A schema with other references."""
        if not isinstance(schema, dict):
            return schema
        out = dict(schema)
        if isinstance(reference := schema.get("$ref"), str) and self._is_stray(reference):
            out["$ref"] = f"#/$defs/{escaped(self._name(reference))}"
        for key, value in schema.items():
            if key in MAPS and isinstance(value, dict):
                out[key] = {name: self.rewrite(part) for name, part in value.items()}
            elif key in LISTS and isinstance(value, list):
                out[key] = [self.rewrite(part) for part in value]
            elif key in SINGLE:
                out[key] = self.rewrite(value)
        return out

    def _name(self, pointer: str) -> str:
        if pointer not in self.names:
            name = pointer.removeprefix("#/").replace("~1", "/").replace("~0", "~").replace("%", "_")
            while name in (self._taken or ()):
                name += "'"
            self._taken = {*(self._taken or ()), name}
            self.names[pointer] = name
        return self.names[pointer]

    def _is_stray(self, pointer: str) -> bool:
        """Whether a pointer leads to a schema that stands where there are none."""
        if not pointer.startswith("#/") or self._taken is None or resolve(self._root, pointer) is None:
            return False
        value: Any = self._root
        parts = pointer.split("/")[1:]
        while parts:
            key = parts.pop(0)
            inner = value.get(key) if isinstance(value, dict) else None
            if key in MAPS and isinstance(inner, dict) and parts:
                value = resolve(inner, f"#/{parts.pop(0)}")
            elif key in LISTS and isinstance(inner, list) and parts and parts[0].isdecimal():
                value = inner[int(parts.pop(0))]
            elif key in SINGLE and isinstance(inner, (dict, bool)):
                value = inner
            else:
                return True
        return False
