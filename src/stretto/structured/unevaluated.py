"""`unevaluatedProperties` and `unevaluatedItems`, by the ways in which the schemas beside them can apply.

Each way through the choices (`anyOf`, `oneOf`, `if`, `dependentSchemas`) names some properties and items; the
rest is what the keyword is about. Where two branches of an `anyOf` fit at once, the properties of one of them
are allowed, not those of both: a few values that fit are refused, none that do not are allowed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from stretto.structured.negation import Negation, both, either
from stretto.structured.places import NotExpressible, Schema, dereferenced, knows_prefix_items

MAX_WAYS = 64
MAX_DEPTH = 8


@dataclass(frozen=True)
class Way:
    """One way in which schemas apply to a value: its conditions, and what it looks at."""

    conditions: tuple[Schema, ...] = ()
    names: frozenset[str] = frozenset()
    patterns: frozenset[str] = frozenset()
    n_items: int = 0
    has_all_properties: bool = False
    has_all_items: bool = False
    contained: tuple[Schema, ...] = ()  # items that fit one of these are looked at by `contains`

    def with_(self, other: Way) -> Way:
        """Both ways at once."""
        return Way(
            self.conditions + other.conditions,
            self.names | other.names,
            self.patterns | other.patterns,
            max(self.n_items, other.n_items),
            self.has_all_properties or other.has_all_properties,
            self.has_all_items or other.has_all_items,
            self.contained + other.contained,
        )


@dataclass
class Unevaluated:
    """The ways within one schema, whose references it follows."""

    root: Schema
    negation: Negation
    place: str = field(default="#")

    def properties(self, schema: dict[str, Any], place: str) -> list[Schema]:
        """What `unevaluatedProperties` asks for."""
        rest, self.place = schema["unevaluatedProperties"], place
        others = {key: value for key, value in schema.items() if key != "unevaluatedProperties"}
        return [either([_closed(way, rest) for way in self.ways(others)])]

    def items(self, schema: dict[str, Any], place: str) -> list[Schema]:
        """What `unevaluatedItems` asks for."""
        rest, self.place = schema["unevaluatedItems"], place
        others = {key: value for key, value in schema.items() if key != "unevaluatedItems"}
        return [either([_finished(way, rest) for way in self.ways(others)])]

    def ways(self, schema: Schema, depth: int = MAX_DEPTH) -> list[Way]:
        """All ways in which a schema and those it consists of apply to a value."""
        if isinstance(schema, bool):
            return [Way()]
        if depth == 0 or ("contains" in schema and not knows_prefix_items(self.root)):
            raise NotExpressible(self.place, "this keyword is not supported beside what stands here")
        groups = [[_own(schema)]]
        groups += [self.ways(part, depth - 1) for part in schema.get("allOf", [])]
        if "$ref" in schema:
            target = dereferenced(self.root, {"$ref": schema["$ref"]}, self.place)
            groups.append(self.ways(target, depth - 1))
        for key in ("anyOf", "oneOf"):
            if key in schema:
                groups.append([way for part in schema[key] for way in self._under(part, depth)])
        if "if" in schema:
            groups.append(self._conditional(schema, depth))
        for name, part in schema.get("dependentSchemas", {}).items():
            absent = Way(({"properties": {name: False}},))
            present = both([{"type": "object", "required": [name]}, part])
            groups.append([absent, *self._under(present, depth)])
        return self._combined(groups)

    def _under(self, part: Schema, depth: int) -> list[Way]:
        """The ways of a branch, on the condition that it fits."""
        return [replace(way, conditions=(part, *way.conditions)) for way in self.ways(part, depth - 1)]

    def _conditional(self, schema: dict[str, Any], depth: int) -> list[Way]:
        then = both([schema["if"], schema.get("then", True)])
        opposite = self.negation.negate(schema["if"], self.place)
        other = schema.get("else", True)
        ways = [replace(way, conditions=(opposite, *way.conditions)) for way in self._under(other, depth)]
        return [*self._under(then, depth), *ways]

    def _combined(self, groups: list[list[Way]]) -> list[Way]:
        n_ways = 1
        for group in groups:
            n_ways *= len(group)
        if n_ways > MAX_WAYS:
            raise NotExpressible(self.place, f"more than {MAX_WAYS} combinations of branches")
        combined = []
        for chosen in product(*groups):
            way = Way()
            for part in chosen:
                way = way.with_(part)
            combined.append(way)
        return combined


def _own(schema: dict[str, Any]) -> Way:
    """What the keywords of a schema itself look at."""
    # Before the draft of 2020, a list in `items` was `prefixItems`, and `additionalItems` the rest.
    is_listed = isinstance(schema.get("items"), list)
    listed = schema["items"] if is_listed else []
    rest = {"additionalItems" if is_listed else "items", "unevaluatedItems"}
    return Way(
        (),
        frozenset(schema.get("properties", {})),
        frozenset(schema.get("patternProperties", {})),
        len(schema.get("prefixItems", listed)),
        bool(schema.keys() & {"additionalProperties", "unevaluatedProperties"}),
        bool(schema.keys() & rest),
        (schema["contains"],) if "contains" in schema else (),
    )


def _closed(way: Way, rest: Schema) -> Schema:
    if way.has_all_properties:
        return both(list(way.conditions))
    member: dict[str, Any] = {
        "properties": dict.fromkeys(sorted(way.names), True),
        "additionalProperties": rest,
    }
    if way.patterns:
        member["patternProperties"] = dict.fromkeys(sorted(way.patterns), True)
    return both([*way.conditions, member])


def _finished(way: Way, rest: Schema) -> Schema:
    if way.has_all_items:
        return both(list(way.conditions))
    member: dict[str, Any] = {"items": either([rest, *way.contained])}
    if way.n_items:
        member["prefixItems"] = [True] * way.n_items
    return both([*way.conditions, member])
