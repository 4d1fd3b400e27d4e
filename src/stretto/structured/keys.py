"""Keys of open objects, in a spelling that cannot hide a known one.

The parser compares keys as they are written. Where an object names properties and may have others, it lets
`"\\u0066oo"` pass as another name than `foo`, and its value would escape the schema of `foo`. Keys that a
pattern describes have no needless escapes, so other names become such keys.
"""

from __future__ import annotations

import json
from typing import Any

from stretto.structured.places import LISTS, MAPS, SINGLE
from stretto.structured.texts import other_texts

ANY_KEY = r"^[\s\S]*$"
_TOGETHER = ("properties", "patternProperties", "additionalProperties")


def with_plain_keys(text: str) -> str:
    """The text of a schema in which other names than those of `properties` have no needless escapes.

    >>> json.loads(with_plain_keys('{"properties": {"a": {}}}'))["additionalProperties"]
    False
    """
    if '"properties"' not in text:
        return text
    return json.dumps(_plain(json.loads(text)), ensure_ascii=False, allow_nan=False)


def with_surely_plain_keys(text: str) -> str:
    """As `with_plain_keys`, where the parser is sure to take the result; the text itself otherwise.

    It takes no two patterns that overlap, and there are none if all of them are for any key.
    """
    if '"patternProperties"' in text:
        return text
    try:
        made = with_plain_keys(text)
    except ValueError:  # a number too large for a float
        return text
    return made if made.count('"patternProperties"') == made.count(json.dumps(ANY_KEY)) else text


def _plain(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    out = {key: _within(key, value) for key, value in schema.items()}
    names, others = out.get("properties"), out.get("additionalProperties", True)
    own = {key: out[key] for key in _TOGETHER if key in out}
    if isinstance(names, dict) and names and others is not False and "patternProperties" not in out:
        pattern = ANY_KEY if others in (True, {}) else f"^{other_texts(names)}$"
        own = {"properties": names, "patternProperties": {pattern: others}, "additionalProperties": False}
    if "properties" not in own:
        return out
    # The parser reads keywords in order, and that is the order of the properties they name.
    made: dict[str, Any] = {}
    for key, value in out.items():
        made |= own if key == "properties" else {} if key in own else {key: value}
    return made


def _within(key: str, value: Any) -> Any:
    if key in LISTS and isinstance(value, list):
        return [_plain(item) for item in value]
    if key in SINGLE:
        return _plain(value)
    if key in MAPS and isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return value
