"""Names of properties: what `propertyNames` asks for, and objects with a name that matches a pattern."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import chain, combinations
from math import inf
from typing import Any

from stretto.structured.overlap import TYPES, list_types
from stretto.structured.patterns import match_only
from stretto.structured.places import NotExpressible, Schema, dereference
from stretto.structured.regular import find_texts, matches, region

# What is known of the values for which the opposite of a JSON schema is used.

# The type whose values a keyword looks at. Other keywords look at all of them.
_TYPE_WORDS = {
    "number": "minimum maximum exclusiveMinimum exclusiveMaximum multipleOf",
    "string": "minLength maxLength pattern format",
    "array": "items prefixItems minItems maxItems uniqueItems contains minContains maxContains "
    "unevaluatedItems",
    "object": "properties patternProperties additionalProperties propertyNames required minProperties "
    "maxProperties dependentRequired dependentSchemas dependencies unevaluatedProperties",
}
TYPE_OF_KEYWORD = {word: name for name, words in _TYPE_WORDS.items() for word in words.split()}


@dataclass(frozen=True)
class Known:
    """What is known of the values for which an opposite is used: it may say anything of all others."""

    types: frozenset[str] = frozenset(TYPES)
    names: frozenset[str] | None = None  # the only properties that an object may have; None: any
    # The properties that are described: names and schemas, as JSON; None: any.
    parts: frozenset[tuple[str, str]] | None = None
    listed: frozenset[str] = frozenset()  # properties that are described somewhere
    required: frozenset[str] = frozenset()  # properties that all objects have
    most: int | None = None  # properties that an object may have
    bounds: tuple[float, float] = (-inf, inf)  # of numbers
    is_brief: bool = False  # leave out what is unlikely, so that few cases remain

    @property
    def is_choice(self) -> bool:
        """Whether another branch of a `oneOf` describes the values: what is unlikely may be left out."""
        return self.parts is not None

    def has_not(self, name: str) -> bool:
        """Whether objects cannot have a property."""
        return self.names is not None and name not in self.names

    def fits(self, name: str, part: Schema) -> bool:
        """Whether a property is known to fit a schema."""
        return self.parts is not None and (name, json.dumps(part)) in self.parts

    def find_schemas(self, name: str) -> list[Schema]:
        """The schemas that a property is known to fit."""
        return [json.loads(part) for other, part in sorted(self.parts or ()) if other == name]

    def describes(self, name: str) -> bool:
        """Whether something is known of a property."""
        return self.parts is None or any(name == other for other, _ in self.parts)

    def looks(self, keyword: str) -> bool:
        """Whether a keyword can refuse one of these values."""
        return TYPE_OF_KEYWORD.get(keyword) in (None, *self.types)


ANY = Known()


MAX_NAMES = 64  # that match a pattern, each of which is a case
MAX_OPTIONAL = 6  # names that do not match, each subset of which is a case
_NAME_KEYWORDS_WORDS = "type pattern minLength maxLength enum const format title description"
_NAME_KEYWORDS = frozenset(_NAME_KEYWORDS_WORDS.split())


def property_names(schema: Schema, root: Schema, place: str) -> list[Schema]:
    """What `propertyNames` asks for: a closed object that has only some names."""
    schema = dereference(root, schema, place)
    if isinstance(schema, bool):
        return [] if schema else [{"additionalProperties": False}]
    for key in ("allOf",):
        if key in schema:
            rest = {k: v for k, v in schema.items() if k != key}
            parts = [rest, *schema[key]]
            return [member for part in parts for member in property_names(part, root, place)]
    if "anyOf" in schema and len(schema) == 1:
        parts = [property_names(part, root, place) for part in schema["anyOf"]]
        if all(len(part) == 1 for part in parts):
            return _any_names([part[0] for part in parts], place)
    if "not" in schema:
        rest = {k: v for k, v in schema.items() if k != "not"}
        inner = property_names(schema["not"], root, f"{place}/not")
        return [*property_names(rest or True, root, place), *_other_names(inner, f"{place}/not")]
    if unknown := schema.keys() - _NAME_KEYWORDS - {"$comment", "default", "examples"}:
        raise NotExpressible(f"{place}/{sorted(unknown)[0]}", "this keyword is not supported for names")
    if "string" not in list_types(schema):
        return [{"additionalProperties": False}]
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    patterns = [f"^[\\s\\S]{{{schema.get('minLength', 0)},{schema.get('maxLength', '')}}}$"]
    patterns = patterns if schema.keys() & {"minLength", "maxLength"} else []
    patterns += [schema["pattern"]] if "pattern" in schema else []
    members: list[Schema] = [
        {"patternProperties": {pattern: True}, "additionalProperties": False} for pattern in patterns
    ]
    if values is not None:
        names = {value: True for value in values if isinstance(value, str)}
        members.append({"properties": names, "additionalProperties": False})
    return members


def _any_names(members: list[Schema], place: str) -> list[Schema]:
    """The names that one of several closed objects has."""
    joined: dict[str, Any] = {"properties": {}, "patternProperties": {}, "additionalProperties": False}
    for member in members:
        if not isinstance(member, dict):
            raise NotExpressible(place, "this choice of names is not supported")
        for key in ("properties", "patternProperties"):
            joined[key].update(member.get(key, {}))
    return [{key: value for key, value in joined.items() if value != {}}]


def _other_names(members: list[Schema], place: str) -> list[Schema]:
    """The names that one of several closed objects, which all apply, does not have."""
    found: list[Schema] = []
    for member in members:
        if not isinstance(member, dict):
            raise NotExpressible(place, "this choice of names is not supported")
        names, patterns = member.get("properties", {}), member.get("patternProperties", {})
        others = region([], [*patterns, *map(match_only, names)], place)
        allowed = {} if others is None else {"patternProperties": {others: True}}
        found.append({**allowed, "additionalProperties": False})
    return found if len(found) == 1 else _any_names(found or [{"additionalProperties": False}], place)


def with_property(name: str, part: Schema) -> Schema:
    """An object that has a property, which fits a schema."""
    return {"type": "object", "required": [name], "properties": {name: part}}


def with_match(pattern: str, part: Schema, known: Known, place: str) -> list[Schema]:
    """Objects with a property whose name matches a pattern and that fits a schema.

    The parser can ask for a name that it is told, not for one of endlessly many among others. So all names
    are known, or few match, or few do not and any value will do, or an object has one name at most.
    Branches of a `oneOf` are told apart by less: all other names match, and fit.
    """
    told = known.listed | known.required if known.names is None else known.names
    found = [with_property(name, part) for name in sorted(told) if matches(pattern, name, place)]
    if known.names is not None:
        return found
    if part is True and any(matches(pattern, name, place) for name in known.required):
        return [{"type": "object"}]
    names = find_texts([pattern], [match_only(name) for name in sorted(told)], MAX_NAMES, place)
    if names is not None:
        return [*found, *(with_property(name, part) for name in names)]
    if known.most is not None and known.most <= len(known.required) + 1:
        return found + _with_others(pattern, part, [], known, place)
    unmatched = find_texts([], [pattern], MAX_OPTIONAL, place) if part is True else None
    optional = [name for name in unmatched or () if name not in known.required]
    if unmatched is not None and (len(optional) <= 2 or not known.is_choice):
        return found + _with_others(pattern, part, optional, known, place)
    if known.is_choice:
        return found + _with_others(pattern, part, [], known, place)
    raise NotExpressible(
        place,
        "an object of any names cannot be asked for one that matches a pattern; list the names, and close it "
        "(additionalProperties: false)",
    )


def _with_others(pattern: str, part: Schema, optional: list[str], known: Known, place: str) -> list[Schema]:
    """Objects of names that match a pattern and are not told, at least one, beside those that are required.

    They fit `part`. Of the names that are optional, each subset is a case of its own.
    """
    told = known.listed | known.required
    others = region([pattern], [match_only(name) for name in sorted(told)], place)
    if others is None:
        return []
    found: list[Schema] = []
    for chosen in chain.from_iterable(combinations(optional, n) for n in range(len(optional) + 1)):
        present = [*sorted(known.required), *chosen]
        absent = sorted({*told, *optional}.difference(present))
        found.append(
            {
                "type": "object",
                "properties": {**dict.fromkeys(present, True), **dict.fromkeys(absent, False)},
                "required": present,
                "patternProperties": {others: part},
                "additionalProperties": False,
                "minProperties": len(present) + 1,
            }
        )
    return found
