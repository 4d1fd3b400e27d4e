"""Keywords of arrays in terms that the parser can follow: `contains`, `uniqueItems`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import combinations, permutations, product
from math import comb
from typing import Any

from stretto.structured.negation import Negation, both, either
from stretto.structured.overlap import TYPES, Overlap, are_equal, list_values, name_type
from stretto.structured.patterns import other_texts
from stretto.structured.places import (
    NotExpressible,
    Schema,
    dereference,
    knows_prefix_items,
    resolve,
    walk_parts,
)

MAX_POSITIONS = 16  # among which the items stand that `contains` asks for
FEW_POSITIONS = 4  # the same where these items have to contain some, and these others
MAX_ARRAY_BRANCHES = 400  # that one keyword may become

NO_ARRAY: Schema = {"type": [name for name in TYPES if name != "array"]}


def contains(schema: dict[str, Any], most: int, negation: Negation, place: str) -> list[Schema]:
    """What `contains`, `minContains` and `maxContains` ask for: the items stand among the first `most`."""
    wanted: Schema = schema["contains"]
    low, high = int(schema.get("minContains", 1)), schema.get("maxContains")
    if wanted is True or wanted == {}:
        return [{"minItems": low}, *([] if high is None else [{"maxItems": int(high)}])]
    if low == 0 and high is None:
        return []
    if high is not None and high < low:
        return [NO_ARRAY]
    n = max(low, min(most, int(schema.get("maxItems", most))))
    if high is None:
        return [either([NO_ARRAY, *_at_least(wanted, low, n, place)])]
    other = negation.negate(wanted, place)
    return [either([NO_ARRAY, *_counted(wanted, other, low, int(high), n, place)])]


def n_positions(root: Schema) -> int:
    """Among how many items those stand that `contains` asks for: few, where it stands in itself twice."""

    @cache
    def depth_at(reference: str) -> int:
        opened.add(reference)
        found = depth(resolve(root, reference))
        opened.discard(reference)
        return found

    def depth(schema: Any) -> int:
        if not isinstance(schema, dict):
            return 0
        found = [depth(part) for _, _, part, _ in walk_parts(schema, "")]
        if isinstance(reference := schema.get("$ref"), str):
            found.append(depth_at(reference) if reference not in opened else 0)
        return max(found, default=0) + ("contains" in schema)

    opened: set[str] = set()
    try:
        return FEW_POSITIONS if '"contains"' in json.dumps(root) and depth(root) > 2 else MAX_POSITIONS
    except RecursionError:
        return FEW_POSITIONS


def _at_least(wanted: Schema, low: int, n: int, place: str) -> Iterator[Schema]:
    if comb(n, low) > MAX_ARRAY_BRANCHES:
        n = next((m for m in range(n, low, -1) if comb(m, low) <= MAX_ARRAY_BRANCHES), low)
    for chosen in combinations(range(n), low):
        prefix = [wanted if index in chosen else True for index in range(chosen[-1] + 1)]
        yield {"type": "array", "prefixItems": prefix, "minItems": len(prefix)}


def _counted(wanted: Schema, other: Schema, low: int, high: int, n: int, place: str) -> Iterator[Schema]:
    while n > high and sum(comb(n, k) for k in range(low, high + 1)) > MAX_ARRAY_BRANCHES:
        n -= 1
    if sum(comb(n, k) for k in range(low, min(high, n) + 1)) > MAX_ARRAY_BRANCHES:
        raise NotExpressible(place, f"this would be more than {MAX_ARRAY_BRANCHES} cases; lower maxContains")
    for k in range(low, min(high, n) + 1):
        for chosen in combinations(range(n), k):
            prefix = [wanted if i in chosen else other for i in range(chosen[-1] + 1 if chosen else 0)]
            yield {"type": "array", "prefixItems": prefix, "minItems": len(prefix), "items": other}


def unique(schema: dict[str, Any], root: Schema, overlap: Overlap, place: str) -> list[Schema] | None:
    """What `uniqueItems` asks for, if the items have few values or are few; None if it needs a check.

    Items that cannot be equal, since their schemas exclude each other, need nothing.
    """
    most = schema.get("maxItems")
    prefix, items = schema.get("prefixItems", []), schema.get("items", True)
    if items is False:
        most = min(len(prefix), len(prefix) if most is None else most)
    if most is not None and most <= 1:
        return []
    kinds: list[Schema] = [*prefix[:most], *([items] if most is None or most > len(prefix) else [])]
    n_items = most if most is not None and most > len(prefix) else len(prefix)
    if most is not None and n_items <= len(kinds) and _all_apart(kinds[:n_items], overlap):
        return []
    if prefix or not isinstance(items, dict):
        return None
    values = _values(dereference(root, items, place))
    if values is None:
        return None
    low, high = int(schema.get("minItems", 0)), len(values) if most is None else min(most, len(values))
    if low > len(values):
        raise NotExpressible(place, f"minItems is {low}, and there are {len(values)} values that differ")
    n_branches = sum(_n_orders(len(values), k) for k in range(low, high + 1))
    if n_branches > MAX_ARRAY_BRANCHES:
        return None
    branches: list[Schema] = [
        {"type": "array", "prefixItems": [{"const": v} for v in order], "minItems": k, "maxItems": k}
        for k in range(low, high + 1)
        for order in permutations(values, k)
    ]
    return [either([NO_ARRAY, *branches])]


def _all_apart(kinds: list[Schema], overlap: Overlap) -> bool:
    return all(overlap.disjoint(left, right) for left, right in combinations(kinds, 2))


def _values(schema: Schema) -> list[Any] | None:
    """All values that a schema allows, if they are few and of simple types."""
    values = list_values(schema)
    if values is None and isinstance(schema, dict):
        kinds: dict[str, list[Any]] = {"boolean": [True, False], "null": [None]}
        values = kinds.get(str(schema.get("type")))
    if values is None or any(name_type(value) in ("array", "object") for value in values):
        return None
    different: list[Any] = []
    for value in values:
        if not any(are_equal(value, other) for other in different):
            different.append(value)
    return different


def _n_orders(n: int, k: int) -> int:
    count = 1
    for factor in range(n - k + 1, n + 1):
        count *= factor
    return count


# Keywords of objects in terms that the parser can follow: numbers of properties, dependencies.

MAX_OBJECT_BRANCHES = 200
NO_OBJECT: Schema = {"type": [name for name in TYPES if name != "object"]}


def dependencies(given: dict[str, Any]) -> list[Schema]:
    """What `dependentRequired`, `dependentSchemas` and the older `dependencies` ask for."""
    members: list[Schema] = []
    for name, needed in given.items():
        absent: Schema = {"properties": {name: False}}
        if isinstance(needed, list):
            members += [either([absent, {"required": [other]}]) for other in needed if other != name]
        else:
            members.append(either([absent, both([{"required": [name]}, needed])]))
    return members


def counts(schema: dict[str, Any], place: str) -> list[Schema] | None:
    """What `minProperties` and `maxProperties` ask for beside optional properties; None if they may stay."""
    listed = schema.get("properties", {})
    required = [name for name in schema.get("required", []) if isinstance(name, str)]
    optional = [name for name in listed if name not in required and listed[name] is not False]
    low, high = int(schema.get("minProperties", 0)), schema.get("maxProperties")
    if not optional:
        return None
    if low <= len(required) and high is None:
        return []
    is_closed = schema.get("additionalProperties") is False and "patternProperties" not in schema
    if is_closed:
        return [_closed_counts(required, optional, low, high, place)]
    if low == len(required) + 1 and high is None and not required and "patternProperties" not in schema:
        return [_one_property(schema, list(listed), optional)]
    return [_open_counts(required, optional, low, high, place)]


def _open_counts(required: list[str], optional: list[str], low: int, high: int | None, place: str) -> Schema:
    """A case for each set of optional properties: with these the parser can count, as they are required."""
    n_enough = min(len(optional), max(0, low - len(required))) if high is None else len(optional)
    if sum(comb(len(optional), n) for n in range(n_enough + 1)) > MAX_OBJECT_BRANCHES:
        raise NotExpressible(
            place,
            f"a number of properties beside optional ones would be more than {MAX_OBJECT_BRANCHES} cases; "
            "use additionalProperties: false, or fewer properties",
        )
    branches: list[Schema] = []
    for n in range(n_enough + 1):
        if high is not None and len(required) + n > high:
            break
        for chosen in combinations(optional, n):
            branch: dict[str, Any] = {"type": "object", "required": [*required, *chosen]}
            if len(required) + n < low or high is not None:  # and none of the others
                branch["properties"] = {name: name in chosen for name in optional}
                branch |= {"minProperties": low} if low else {}
                branch |= {} if high is None else {"maxProperties": int(high)}
            branches.append(branch)
    return either([NO_OBJECT, *branches])


def _closed_counts(
    required: list[str], optional: list[str], low: int, high: int | None, place: str
) -> Schema:
    n_low = max(0, low - len(required))
    n_high = len(optional) if high is None else min(len(optional), int(high) - len(required))
    if n_low > n_high or n_high < 0:
        return NO_OBJECT
    if comb(len(optional), n_high) * comb(n_high, n_low) > MAX_OBJECT_BRANCHES:
        raise NotExpressible(
            place, f"this would be more than {MAX_OBJECT_BRANCHES} cases; use fewer properties"
        )
    branches: list[Schema] = []
    for chosen in combinations(optional, n_high):
        absent = {name: False for name in optional if name not in chosen}
        for present in combinations(chosen, n_low):
            branch: dict[str, Any] = {"type": "object", "required": list(present)}
            branches.append({**branch, "properties": absent} if absent else branch)
    return either([NO_OBJECT, *branches])


def _one_property(schema: dict[str, Any], listed: list[str], optional: list[str]) -> Schema:
    """At least one property of an open object: one that is listed, or one of another name."""
    others: Schema = {
        "type": "object",
        "patternProperties": {f"^{other_texts(listed)}$": True},
        "additionalProperties": False,
        "minProperties": 1,
    }
    present: list[Schema] = [{"type": "object", "required": [name]} for name in optional]
    return either([NO_OBJECT, *present, others])


# `unevaluatedProperties` and `unevaluatedItems`, by the ways in which the schemas beside them can apply.
#
# Each way through the choices (`anyOf`, `oneOf`, `if`, `dependentSchemas`) names some properties and items;
# the rest is what the keyword is about. Where two branches of an `anyOf` fit at once, the properties of one
# of them are allowed, not those of both: a few values that fit are refused, none that do not are allowed.

MAX_WAYS = 64
MAX_UNEVALUATED_DEPTH = 8


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

    def ways(self, schema: Schema, depth: int = MAX_UNEVALUATED_DEPTH) -> list[Way]:
        """All ways in which a schema and those it consists of apply to a value."""
        if isinstance(schema, bool):
            return [Way()]
        if depth == 0 or ("contains" in schema and not knows_prefix_items(self.root)):
            raise NotExpressible(self.place, "this keyword is not supported beside what stands here")
        groups = [[_own(schema)]]
        groups += [self.ways(part, depth - 1) for part in schema.get("allOf", [])]
        if "$ref" in schema:
            target = dereference(self.root, {"$ref": schema["$ref"]}, self.place)
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
