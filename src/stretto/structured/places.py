"""Places in a JSON schema: where subschemas stand, and what a reference within the schema leads to."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import unquote

from stretto.errors import InvalidGrammar

Schema = dict[str, Any] | bool

# The keywords whose values are schemas, lists of schemas, and maps of them.
_SINGLE_WORDS = (
    "items additionalItems additionalProperties contains propertyNames not if then else "
    "unevaluatedItems unevaluatedProperties"
)
SINGLE = frozenset(_SINGLE_WORDS.split())
_LISTS_WORDS = "allOf anyOf oneOf prefixItems items"
LISTS = frozenset(_LISTS_WORDS.split())
_MAPS_WORDS = "properties patternProperties dependentSchemas dependencies $defs definitions"
MAPS = frozenset(_MAPS_WORDS.split())

# The keywords that say nothing of values.
_ANNOTATION_WORDS = "title description default examples $comment $schema $defs definitions"
ANNOTATIONS = frozenset(_ANNOTATION_WORDS.split())

_OLD = re.compile(r"draft-0[3-7]/")
MAX_REFERENCES = 16  # followed one after the other


class NotExpressible(Exception):
    """A part of a schema has no equivalent that the parser can follow; `place` is a JSON pointer."""

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(f"{place}: {reason}")
        self.place, self.reason = place, reason


def escape_key(key: str) -> str:
    """A key as a part of a JSON pointer."""
    return key.replace("~", "~0").replace("/", "~1")


def resolve(root: Schema, reference: str) -> Schema | None:
    """The schema at a JSON pointer, `#/$defs/name`; None where it leads nowhere, or is an anchor."""
    if not reference.startswith("#") or (len(reference) > 1 and reference[1] != "/"):
        return None
    value: Any = root
    for part in reference.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict) and key not in value:
            key = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict) and key in value:
            value = value[key]
        elif isinstance(value, list) and key.isdecimal() and int(key) < len(value):
            value = value[int(key)]
        else:
            return None
    return value if isinstance(value, (dict, bool)) else None


def dereference(root: Schema, schema: Schema, place: str = "#") -> Schema:
    """A schema whose own `$ref` is replaced by what it leads to, with the keywords beside it kept."""
    for _ in range(MAX_REFERENCES):
        if not isinstance(schema, dict) or not isinstance(reference := schema.get("$ref"), str):
            return schema
        target = resolve(root, reference)
        if target is None:
            raise NotExpressible(place, f"the reference {reference!r:.100} cannot be followed here")
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        if not rest:
            schema = target
        elif isinstance(target, dict) and not rest.keys() & target.keys():
            schema = {**target, **rest}
        else:
            schema = {"allOf": [target, rest]}
    raise NotExpressible(place, "the references go round in a circle")


def is_old(root: Any) -> bool:
    """Whether a schema says that it is of draft 7 or an older one."""
    dialect = root.get("$schema") if isinstance(root, dict) else None
    return isinstance(dialect, str) and _OLD.search(dialect) is not None


def knows_prefix_items(root: Any) -> bool:
    """Whether a schema is of a draft with `prefixItems`, which came in 2020, or says nothing of its draft."""
    dialect = root.get("$schema") if isinstance(root, dict) else None
    return not is_old(root) and "2019-09" not in str(dialect)


def walk_references(schema: Any) -> Iterator[str]:
    """All references in a schema, as pointers."""
    stack = [schema]
    while stack:
        value = stack.pop()
        if isinstance(value, dict):
            if isinstance(reference := value.get("$ref"), str):
                yield unquote(reference)
            stack += value.values()
        elif isinstance(value, list):
            stack += value


def walk_parts(schema: dict[str, Any], place: str) -> Iterator[tuple[str, Any, Any, str]]:
    """The schemas right within one: the keyword, the name or index under it, the schema, and its place."""
    for key, value in schema.items():
        here = f"{place}/{escape_key(key)}"
        if key in SINGLE and isinstance(value, dict):
            yield key, None, value, here
        elif (key in LISTS or key == "items") and isinstance(value, list):
            yield from ((key, i, part, f"{here}/{i}") for i, part in enumerate(value))
        elif key in MAPS and isinstance(value, dict):
            yield from ((key, name, part, f"{here}/{escape_key(name)}") for name, part in value.items())


def replace_parts(schema: dict[str, Any], place: str, make: Callable[[Any, str], Any]) -> None:
    """Replace the schemas right within one by what `make` makes of each and its place."""
    for key, value in list(schema.items()):
        here = f"{place}/{escape_key(key)}"
        if key in SINGLE and isinstance(value, dict):
            schema[key] = make(value, here)
        elif (key in LISTS or key == "items") and isinstance(value, list):
            schema[key] = [make(part, f"{here}/{i}") for i, part in enumerate(value)]
        elif key in MAPS and isinstance(value, dict):
            schema[key] = {name: make(part, f"{here}/{escape_key(name)}") for name, part in value.items()}


def modern_items(schema: dict[str, Any]) -> dict[str, Any]:
    """Items as the draft of 2020 writes them: a list of items is `prefixItems`, then the rest follows."""
    rest = schema.get("additionalItems", True)
    schema = {key: value for key, value in schema.items() if key != "additionalItems"}
    if isinstance(schema.get("items"), list):
        schema["prefixItems"] = schema.pop("items")
        if rest is not True:
            schema["items"] = rest
    return schema


def schema_error(place: str, reason: str) -> InvalidGrammar:
    """The error of a schema that cannot be used because of the part at `place`."""
    return InvalidGrammar(f"the JSON schema at {place}: {reason}", param="schema", value=place)
