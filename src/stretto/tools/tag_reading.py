"""Arguments written as tags, one for each: read while they come, and given on as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from stretto.tools.format import TYPE, Elements, Tagged, shared_prefix
from stretto.tools.json_reading import Malformed, Sink, Source, Steps, load_strict, quote_text, read_json

# The JSON types that a schema allows, as far as its keywords say.

ALL = frozenset(("string", "integer", "number", "boolean", "null", "object", "array"))
MAX_DEPTH = 16


def find_types(schema: Any, root: Mapping[str, Any], depth: int = 0) -> frozenset[str]:
    """The types of the values that a schema may allow; `root` has its definitions.

    >>> sorted(find_types({"anyOf": [{"type": "string"}, {"const": None}]}, {}))
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
        types &= find_types(resolve_reference(schema["$ref"], root), root, depth + 1)
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), (list, tuple)):
            parts = [find_types(part, root, depth + 1) for part in schema[key]]
            types &= frozenset().union(*parts)
    for part in schema.get("allOf") or ():
        types &= find_types(part, root, depth + 1)
    return types or ALL


def resolve_reference(reference: Any, root: Mapping[str, Any]) -> Any:
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


_CONSTANTS = {"True": True, "False": False, "None": None}
_WORD = re.compile(r"\w+")
_KEY = re.compile(r"[^\s<>\"']{1,256}")


def read_tags(source: Source, sink: Sink, tags: Tagged, schema: Mapping[str, Any]) -> Steps[None]:
    """Take arguments and give them on as a JSON object; `schema` is that of the function's parameters."""
    sink("{")
    is_first = True
    while (yield from source.skip(tags.key)):
        key = (yield from source.take_until(_after_key(tags))).strip()
        if not _KEY.fullmatch(key):
            raise Malformed
        sink(("" if is_first else ", ") + json.dumps(key, ensure_ascii=False) + ": ")
        is_first = False
        types = find_types(_property(schema, key), schema)
        yield from _read_value(source, sink, tags, types)
    sink("}")


def _after_key(tags: Tagged) -> str:
    """The text that ends a key: the part that all values share, and only its first tag."""
    if tags.value_json:
        return shared_prefix(tags.value, tags.value_json)
    match = re.match(r"[^>\n]*>?", tags.value)
    return match[0] if match else tags.value


def _property(schema: Mapping[str, Any], key: str) -> Any:
    properties = schema.get("properties")
    return properties.get(key, {}) if isinstance(properties, Mapping) else {}


def _read_value(source: Source, sink: Sink, tags: Tagged, types: frozenset[str]) -> Steps[None]:
    """Take the rest of the tag before a value, the value, and the tag after it."""
    types = yield from _read_opening(source, tags, types)
    if tags.value.endswith("\n"):
        yield from _skip_newline(source)
    end = tags.end.strip()
    if tags.verbatim[0] and (yield from source.skip(tags.verbatim[0])):
        yield from source.quote_until(tags.verbatim[1], sink)
        yield from source.expect(end)
        return
    if types != {"string"}:
        if (yield from _try_json(source, sink, end, types)):
            return
        text = yield from source.take_until(end)
        sink(json.dumps(parse_value(_trimmed(text, tags), types), ensure_ascii=False))
        return
    if not tags.end.startswith("\n"):
        yield from source.quote_until(end, sink)
        return
    sink('"')
    yield from source.until(end, _Tail(sink).push)
    sink('"')


def _read_opening(source: Source, tags: Tagged, types: frozenset[str]) -> Steps[frozenset[str]]:
    """Take the rest of the text before a value; the types that it may have, which this text may tell."""
    taken = len(_after_key(tags))
    others = types - {"string"} or frozenset({"null"})
    if TYPE in tags.value_json:
        kind = yield from source.take(_WORD)
        rest = tags.value_json.partition(TYPE)[2]
        yield from source.expect(rest)
        return frozenset({"string"}) if kind == "string" else others if "string" in types else types
    if tags.value_json and (yield from source.skip(tags.value_json[taken:])):
        return others
    yield from source.expect(tags.value[taken:].rstrip("\n"))
    return frozenset({"string"}) if tags.value_json else types


class _Tail:
    """Gives text on, but for one newline at its end."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._held = ""

    def push(self, text: str) -> None:
        text = self._held + text
        kept = text[:-1] if text.endswith("\n") else text
        self._held = text[len(kept) :]
        if kept:
            self._sink(quote_text(kept))


def _skip_newline(source: Source) -> Steps[None]:
    if (yield from source.peek()) == "\n":
        source.at += 1


def _trimmed(text: str, tags: Tagged) -> str:
    return text.removesuffix("\n") if tags.end.startswith("\n") else text


def _try_json(source: Source, sink: Sink, end: str, types: frozenset[str]) -> Steps[bool]:
    """Take a value as JSON, in whose strings tags may stand; False, and nothing is taken, if it is none."""
    start = source.at
    parts: list[str] = []
    try:
        yield from read_json(source, parts.append)
        if not fits(json.loads("".join(parts)), types):
            raise Malformed
        yield from source.expect(end)
    except Malformed:
        source.at = start
        return False
    sink("".join(parts))
    return True


def parse_value(text: str, types: frozenset[str]) -> Any:
    """The value that a text stands for, among those of some types: a string if it can be nothing else."""
    word = text.strip()
    if word in _CONSTANTS and fits(_CONSTANTS[word], types):
        return _CONSTANTS[word]
    try:
        value = load_strict(word)
    except (ValueError, RecursionError):
        return text
    return value if fits(value, types) else text


# Arguments written as nested elements that have their names: read while they come, and given on as JSON.

_ELEMENT_KEY = re.compile(r"[^\s<>\"'/]{1,256}")
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
        types, end = find_types(schema, self._root), f"{self._elements.mark}</{name}>"
        if types & _NESTED and ("string" not in types or types == ALL):
            first = yield from self._next()
            if first or types <= _NESTED:
                is_list = "array" in types and (first == self._elements.item or "object" not in types)
                yield from self._read_array(schema) if is_list else self._read_object(schema)
                yield from self._source.expect(end)
                return
        if types == {"string"}:
            yield from self._source.quote_until(end, self._sink)
            return
        text = yield from self._source.take_until(end)
        if not text and "string" not in types and types & _NESTED:
            self._sink("{}" if "object" in types else "[]")
        else:
            self._sink(json.dumps(parse_value(text, types), ensure_ascii=False))

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
            name = yield from source.take(_ELEMENT_KEY)
            if name and (yield from source.skip(">")):
                return name
        source.at = start
        return ""

    def _branch(self, schema: Any, kind: str, depth: int = 0) -> Mapping[str, Any]:
        """The part of a schema that describes values of a type."""
        if not isinstance(schema, Mapping) or depth > MAX_DEPTH:
            return {}
        if "$ref" in schema:
            return self._branch(resolve_reference(schema["$ref"], self._root), kind, depth + 1)
        for part in [*(schema.get("anyOf") or ()), *(schema.get("oneOf") or ())]:
            if kind in find_types(part, self._root):
                return self._branch(part, kind, depth + 1)
        return schema
