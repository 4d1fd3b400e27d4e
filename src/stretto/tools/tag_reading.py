"""Arguments written as tags, one for each: read while they come, and given on as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from stretto.tools.format import TYPE, Tagged, shared_prefix
from stretto.tools.json_reading import quoted, read_json
from stretto.tools.source import Malformed, Sink, Source, Steps
from stretto.tools.types import fits, types_of

_CONSTANTS = {"True": True, "False": False, "None": None}
_WORD = re.compile(r"\w+")
_KEY = re.compile(r"[^\s<>\"']{1,256}")


def read_tags(source: Source, sink: Sink, tags: Tagged, schema: Mapping[str, Any]) -> Steps[None]:
    """Take arguments and give them on as a JSON object; `schema` is that of the function's parameters."""
    sink("{")
    is_first = True
    while (yield from source.skip(tags.key)):
        parts: list[str] = []
        yield from source.until(_after_key(tags), parts.append)
        key = "".join(parts).strip()
        if not _KEY.fullmatch(key):
            raise Malformed
        sink(("" if is_first else ", ") + json.dumps(key, ensure_ascii=False) + ": ")
        is_first = False
        types = types_of(_property(schema, key), schema)
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
        sink('"')
        yield from source.until(tags.verbatim[1], lambda text: sink(quoted(text)))
        sink('"')
        yield from source.expect(end)
        return
    if types != {"string"}:
        if (yield from _try_json(source, sink, end, types)):
            return
        parts: list[str] = []
        yield from source.until(end, parts.append)
        sink(json.dumps(value_of(_trimmed("".join(parts), tags), types), ensure_ascii=False))
        return
    sink('"')
    if not tags.end.startswith("\n"):
        yield from source.until(end, lambda text: sink(quoted(text)))
    else:
        tail = _Tail(sink)
        yield from source.until(end, tail.push)
        tail.end()
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
            self._sink(quoted(kept))

    def end(self) -> None:
        self._held = ""


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


def value_of(text: str, types: frozenset[str]) -> Any:
    """The value that a text stands for, among those of some types: a string if it can be nothing else."""
    word = text.strip()
    if word in _CONSTANTS and fits(_CONSTANTS[word], types):
        return _CONSTANTS[word]
    try:
        value = json.loads(word, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return text
    return value if fits(value, types) else text


def _no_constant(name: str) -> None:
    raise ValueError(name)
