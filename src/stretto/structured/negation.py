"""The opposite of a JSON schema: a schema for exactly the values that do not fit it.

Not every schema has one that the parser can follow: then `NotExpressible` names the place. Opposites are
used where they restrict, never negated again, so one that allows less is safe: that of "integer" is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from stretto.structured.formats import FORMATS
from stretto.structured.overlap import TYPES, same, type_of
from stretto.structured.places import NotExpressible, Schema, dereferenced, escaped

MAX_DEPTH = 8
MAX_VALUES = 200  # of an enum whose opposite is wanted

# For numbers, texts, arrays and objects: the type, the opposite keyword and what to add to the bound.
_SIZES = {
    "minLength": ("string", "maxLength", -1),
    "maxLength": ("string", "minLength", 1),
    "minItems": ("array", "maxItems", -1),
    "maxItems": ("array", "minItems", 1),
    "minProperties": ("object", "maxProperties", -1),
    "maxProperties": ("object", "minProperties", 1),
}
_BOUNDS = {
    "minimum": "exclusiveMaximum",
    "maximum": "exclusiveMinimum",
    "exclusiveMinimum": "maximum",
    "exclusiveMaximum": "minimum",
}
_NO_OPPOSITE_WORDS = (
    "multipleOf pattern patternProperties propertyNames uniqueItems dependentSchemas "
    "dependencies oneOf unevaluatedItems unevaluatedProperties $dynamicRef $recursiveRef "
    "additionalItems"
)
_NO_OPPOSITE = frozenset(_NO_OPPOSITE_WORDS.split())


class Negation:
    """Opposites within one schema, whose references it follows."""

    def __init__(self, root: Schema) -> None:
        self._root = root

    def negate(self, schema: Schema, place: str, depth: int = MAX_DEPTH) -> Schema:
        """A schema for the values that do not fit `schema`, which stands at `place`."""
        schema = dereferenced(self._root, schema, place)
        if isinstance(schema, bool):
            return not schema
        if depth == 0:
            raise NotExpressible(place, "the opposite of a schema this deep is not supported")
        branches: list[Schema] = []
        for key, value in schema.items():
            branches += self._opposites(key, value, schema, f"{place}/{escaped(key)}", depth - 1)
        return either(branches)

    def _opposites(
        self, key: str, value: Any, schema: dict[str, Any], place: str, depth: int
    ) -> list[Schema]:
        """Schemas for the values that one keyword refuses."""
        if key in _NO_OPPOSITE or (key == "format" and value in FORMATS):
            raise NotExpressible(place, "the opposite of this keyword is not supported")
        if key == "type":
            return _other_types([value] if isinstance(value, str) else value)
        if key in ("const", "enum"):
            return self._other_values([value] if key == "const" else value, place, depth)
        if key in _SIZES:
            name, opposite, step = _SIZES[key]
            return [{"type": name, opposite: value + step}] if value + step >= 0 else []
        if key in _BOUNDS:
            if isinstance(value, bool):
                raise NotExpressible(place, "a bound that is true or false is that of an older draft")
            return [{"type": "number", _BOUNDS[key]: value}]
        if key in ("required", "properties", "dependentRequired", "additionalProperties"):
            return self._other_objects(key, value, place, depth)
        if key in ("items", "prefixItems", "contains", "minContains", "maxContains"):
            return self._other_arrays(key, value, schema, place, depth)
        return self._other_choices(key, value, schema, place, depth)

    def _other_choices(
        self, key: str, value: Any, schema: dict[str, Any], place: str, depth: int
    ) -> list[Schema]:
        if key == "not":
            return [value]
        if key == "allOf":
            return [self.negate(part, f"{place}/{i}", depth) for i, part in enumerate(value)]
        if key == "anyOf":
            return [both([self.negate(part, f"{place}/{i}", depth) for i, part in enumerate(value)])]
        if key == "if":
            parent = place.rpartition("/")[0]
            then = self.negate(schema.get("then", True), f"{parent}/then", depth)
            other = self.negate(schema.get("else", True), f"{parent}/else", depth)
            return [both([value, then]), both([self.negate(value, place, depth), other])]
        return []  # an annotation, or `then` and `else`, which stand with their `if`

    def _other_objects(self, key: str, value: Any, place: str, depth: int) -> list[Schema]:
        if key == "required":
            return [{"type": "object", "properties": {name: False}} for name in value]
        if key == "dependentRequired":
            return [
                {"type": "object", "required": [name], "properties": {missing: False}}
                for name, others in value.items()
                for missing in others
                if missing != name
            ]
        if key == "additionalProperties":
            if value is True or value == {}:
                return []
            raise NotExpressible(place, "the opposite of this keyword is not supported")
        opposites = {
            name: self.negate(part, f"{place}/{escaped(name)}", depth) for name, part in value.items()
        }
        return [
            {"type": "object", "required": [name], "properties": {name: part}}
            for name, part in opposites.items()
            if part is not False
        ]

    def _other_arrays(
        self, key: str, value: Any, schema: dict[str, Any], place: str, depth: int
    ) -> list[Schema]:
        if key == "prefixItems":
            parts = [self.negate(part, f"{place}/{i}", depth) for i, part in enumerate(value)]
            return [
                {"type": "array", "prefixItems": [True] * i + [part], "minItems": i + 1}
                for i, part in enumerate(parts)
                if part is not False
            ]
        if key == "items":
            if value is True or value == {}:
                return []
            if value is False:
                return [{"type": "array", "minItems": len(schema.get("prefixItems", [])) + 1}]
            if schema.get("prefixItems"):
                raise NotExpressible(place, "the opposite of items behind prefixItems is not supported")
            return [{"type": "array", "contains": self.negate(value, place, depth)}]
        if key == "contains" and "minContains" not in schema and "maxContains" not in schema:
            return [{"type": "array", "items": self.negate(value, place, depth)}]
        if "contains" in schema:
            raise NotExpressible(place, "the opposite of a count is not supported")
        return []

    def _other_values(self, values: list[Any], place: str, depth: int) -> list[Schema]:
        if len(values) > MAX_VALUES:
            raise NotExpressible(place, f"the opposite of more than {MAX_VALUES} values is not supported")
        kinds = {type_of(value) for value in values}
        found: list[Schema] = []
        if others := [name for name in TYPES if name not in kinds]:
            found.append({"type": others})
        if "boolean" in kinds:
            left = [flag for flag in (True, False) if not any(same(flag, value) for value in values)]
            found += [{"const": flag} for flag in left]
        if "number" in kinds:
            found += _other_numbers(value for value in values if type_of(value) == "number")
        if "string" in kinds:
            texts = [value for value in values if isinstance(value, str)]
            found.append({"type": "string", "pattern": f"^{other_texts(texts)}$"})
        for name in ("array", "object"):
            if name in kinds:
                apart = [_spelled_out(value) for value in values if type_of(value) == name]
                opposites = [self.negate(part, place, depth) for part in apart]
                found.append(both([{"type": name}, *opposites]))
        return found


def either(branches: list[Schema]) -> Schema:
    """A schema for what fits one of several."""
    useful = [branch for branch in branches if branch is not False]
    if True in [branch for branch in useful if isinstance(branch, bool)] or {} in useful:
        return True
    if not useful:
        return False
    return useful[0] if len(useful) == 1 else {"anyOf": useful}


def both(parts: list[Schema]) -> Schema:
    """A schema for what fits all of several."""
    useful = [part for part in parts if part is not True and part != {}]
    if any(part is False for part in useful):
        return False
    if not useful:
        return True
    return useful[0] if len(useful) == 1 else {"allOf": useful}


def other_texts(texts: Iterable[str]) -> str:
    """A regular expression, without anchors, for every text but some: along the tree of their characters.

    >>> other_texts(["a"])
    '(?:|[^a][\\\\s\\\\S]*|a[\\\\s\\\\S]+)'
    """
    return _beside(sorted(set(texts)), 0)


def _beside(texts: list[str], at: int) -> str:
    """For the rest of texts that have the first `at` characters in common."""
    empty = "" if all(len(text) > at for text in texts) else None
    branches: dict[str, list[str]] = {}
    for text in texts:
        if len(text) > at:
            branches.setdefault(text[at], []).append(text)
    anything = r"[\s\S]*"
    if not branches:
        return r"[\s\S]+"
    pieces = [f"[^{''.join(_in_class(character) for character in branches)}]{anything}"]
    for character, rest in branches.items():
        pieces.append(f"{_literal(character)}{_beside(rest, at + 1)}")
    options = ([empty] if empty is not None else []) + pieces
    return f"(?:{'|'.join(options)})"


def _in_class(character: str) -> str:
    return re.sub(r"[^\w ]", lambda match: f"\\x{{{ord(match[0]):X}}}", character)


_literal = _in_class


def _other_types(names: list[str]) -> list[Schema]:
    # Numbers that are no integers cannot be told apart: they are left out, so nothing wrong is allowed.
    given = ["number" if name == "integer" else name for name in names]
    left = [name for name in TYPES if name not in given]
    return [{"type": left}] if left else []


def _other_numbers(values: Iterable[float]) -> list[Schema]:
    ordered = sorted(set(values))
    below: list[Schema] = [{"type": "number", "exclusiveMaximum": ordered[0]}]
    between: list[Schema] = [
        {"type": "number", "exclusiveMinimum": low, "exclusiveMaximum": high}
        for low, high in pairwise(ordered)
    ]
    return [*below, *between, {"type": "number", "exclusiveMinimum": ordered[-1]}]


def _spelled_out(value: Any) -> Schema:
    """An array or object as a schema by its parts."""
    if isinstance(value, list):
        return {
            "type": "array",
            "prefixItems": [{"const": item} for item in value],
            "minItems": len(value),
            "maxItems": len(value),
        }
    return {
        "type": "object",
        "properties": {key: {"const": item} for key, item in value.items()},
        "required": list(value),
        "maxProperties": len(value),
    }
