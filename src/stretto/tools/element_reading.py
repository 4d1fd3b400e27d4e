"""Arguments written as nested elements that have their names: read while they come, and given on as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from stretto.tools.format import Elements
from stretto.tools.json_reading import quoted
from stretto.tools.source import Sink, Source, Steps
from stretto.tools.tag_reading import value_of
from stretto.tools.types import ALL, MAX_DEPTH, resolved, types_of

_KEY = re.compile(r"[^\s<>\"'/]{1,256}")
_NESTED = frozenset(("object", "array"))


class ElementReader:
    """Reads the arguments of one call; `root` is the schema of the function's parameters."""

    def __init__(self, source: Source, sink: Sink, elements: Elements, root: Mapping[str, Any]) -> None:
        self._source, self._sink, self._elements, self._root = source, sink, elements, root

    def read(self) -> Steps[None]:
        """Take all arguments, and give them on as a JSON object."""
        yield from self._read_object(self._root)

    def _read_object(self, schema: Any) -> Steps[None]:
        schema, comma = self._branch(schema, "object"), ""
        properties, others = schema.get("properties"), schema.get("additionalProperties", {})
        self._sink("{")
        while key := (yield from self._opening()):
            self._sink(f"{comma}{json.dumps(key, ensure_ascii=False)}: ")
            known = isinstance(properties, Mapping) and key in properties
            yield from self._read_value(properties[key] if known else others, key)
            comma = ", "
        self._sink("}")

    def _read_array(self, schema: Any) -> Steps[None]:
        inner, comma = self._branch(schema, "array").get("items", {}), ""
        self._sink("[")
        while (yield from self._next()) == self._elements.item:
            yield from self._opening()
            self._sink(comma)
            yield from self._read_value(inner, self._elements.item)
            comma = ", "
        self._sink("]")

    def _read_value(self, schema: Any, name: str) -> Steps[None]:
        """Take a value and the tag behind it."""
        types, end = types_of(schema, self._root), f"{self._elements.mark}</{name}>"
        if types & _NESTED and ("string" not in types or types == ALL):
            first = yield from self._next()
            if first or types <= _NESTED:
                is_list = "array" in types and (first == self._elements.item or "object" not in types)
                yield from self._read_array(schema) if is_list else self._read_object(schema)
                yield from self._source.expect(end)
                return
        if types == {"string"}:
            self._sink('"')
            yield from self._source.until(end, lambda text: self._sink(quoted(text)))
            self._sink('"')
            return
        parts: list[str] = []
        yield from self._source.until(end, parts.append)
        text = "".join(parts)
        if not text and "string" not in types and types & _NESTED:
            self._sink("{}" if "object" in types else "[]")
        else:
            self._sink(json.dumps(value_of(text, types), ensure_ascii=False))

    def _next(self) -> Steps[str]:
        """The name of the element that begins here, which is not taken."""
        start = self._source.at
        name = yield from self._opening()
        self._source.at = start
        return name

    def _opening(self) -> Steps[str]:
        """Take the tag before a value; its name, or nothing where no element begins."""
        source, start = self._source, self._source.at
        if (yield from source.skip(self._elements.mark + "<")):
            name = yield from source.take(_KEY)
            if name and (yield from source.skip(">")):
                return name
        source.at = start
        return ""

    def _branch(self, schema: Any, kind: str, depth: int = 0) -> Mapping[str, Any]:
        """The part of a schema that describes values of a type."""
        if not isinstance(schema, Mapping) or depth > MAX_DEPTH:
            return {}
        if "$ref" in schema:
            return self._branch(resolved(schema["$ref"], self._root), kind, depth + 1)
        for part in [*(schema.get("anyOf") or ()), *(schema.get("oneOf") or ())]:
            if kind in types_of(part, self._root):
                return self._branch(part, kind, depth + 1)
        return schema
