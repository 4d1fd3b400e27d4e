"""What is known of the values for which the opposite of a JSON schema is used."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import inf

from stretto.structured.overlap import TYPES
from stretto.structured.places import Schema

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

    def describes(self, name: str) -> bool:
        """Whether something is known of a property."""
        return self.parts is None or any(name == other for other, _ in self.parts)

    def looks(self, keyword: str) -> bool:
        """Whether a keyword can refuse one of these values."""
        return TYPE_OF_KEYWORD.get(keyword) in (None, *self.types)


ANY = Known()
