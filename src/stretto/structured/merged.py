"""JSON schemas in which no two have to be merged: each value has one, with all that applies to it.

The parser merges schemas for the same value, and gives up where it meets a reference within what it is
merging: the schema is circular. Here the schemas that apply to a value become one definition, and those that
apply to its properties another one; the same schemas together are the same definition, so a circle closes.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from itertools import product
from math import prod
from typing import Any

from stretto.structured.automata import limited_work
from stretto.structured.negation import list_parts
from stretto.structured.overlap import Overlap
from stretto.structured.patterns import match_only
from stretto.structured.places import ANNOTATIONS, LISTS, MAPS, SINGLE, NotExpressible, Schema, resolve
from stretto.structured.regular import matches, region, separate_patterns
from stretto.structured.workers import check_budget

MAX_DEFINITIONS = 1_000
MAX_BRANCHES = 256  # of one definition
MAX_BRANCHES_IN_ALL = 5_000
_OBJECT = ("properties", "patternProperties", "additionalProperties")
_ARRAY = ("prefixItems", "items")

Flat = list[dict[str, Any]]  # schemas for one value, without choices and references


def merge_schemas(schema: Schema) -> Schema | None:
    """A schema for the same values whose references have nothing beside them; None if it is too large.

    >>> node = {"properties": {"next": {"$ref": "#/$defs/node"}}, "type": "object"}
    >>> made = merge_schemas({"$ref": "#/$defs/node", "$defs": {"node": node}, "required": ["next"]})
    >>> sorted(made["$defs"]), made["$ref"]
    (['stretto:0', 'stretto:1'], '#/$defs/stretto:0')
    """
    try:
        with limited_work():
            return _Merger(schema).merge_root()
    except NotExpressible:
        return None


class _Merger:
    def __init__(self, root: Schema) -> None:
        self._root = root
        self._overlap = Overlap(root)
        self._names: dict[frozenset[str], str] = {}  # of definitions, by the schemas they are for
        self._open: list[tuple[str, list[Schema]]] = []  # those that are still to be made
        self._n_branches = 0

    def merge_root(self) -> Schema:
        first = self._reference([self._root])
        made: dict[str, list[dict[str, Any]]] = {}
        while self._open:
            name, parts = self._open.pop()
            made[name] = self._define(parts)
        kept = {f"#/$defs/{name}": branches for name, branches in _satisfiable(made).items()}
        definitions = {}
        for place, branches in kept.items():
            parts = [_pruned(branch, kept.keys()) for branch in branches]
            definitions[place.removeprefix("#/$defs/")] = parts[0] if len(parts) == 1 else {"anyOf": parts}
        found: Schema = _pruned(first, kept.keys())
        return {**found, "$defs": definitions} if isinstance(found, dict) else found

    def _reference(self, parts: list[Schema]) -> Schema:
        """A schema for what fits all of several."""
        useful = {json.dumps(part): part for part in parts if part is not True and part != {}}
        if any(part is False for part in useful.values()):
            return False
        if not useful:
            return True
        if len(useful) == 1 and _is_leaf(part := next(iter(useful.values()))):
            return part
        key = frozenset(useful)
        if key not in self._names:
            self._names[key] = f"stretto:{len(self._names)}"
            self._open.append((self._names[key], list(useful.values())))
        if len(self._names) > MAX_DEFINITIONS:
            raise NotExpressible("#", "too large")
        return {"$ref": f"#/$defs/{self._names[key]}"}

    def _define(self, parts: list[Schema]) -> list[dict[str, Any]]:
        branches = self._branches(parts)
        self._n_branches += len(branches)
        if self._n_branches > MAX_BRANCHES_IN_ALL:
            raise NotExpressible("#", "too large")
        return [self._merge(members) for members in branches]

    def _branches(self, parts: list[Schema], path: tuple[str, ...] = ()) -> list[Flat]:
        """The ways in which a value may fit all of several schemas."""
        check_budget()
        found: list[Flat] = [[]]
        for part in parts:
            ways = self._ways(part, path)
            if len(found) * len(ways) > MAX_BRANCHES:
                raise NotExpressible("#", "too many choices at once")
            found = [[*left, *right] for left, right in product(found, ways)]
            if len(parts) > 1:
                found = [way for way in found if self._overlap.types([*way])]
        return [_distinct(way) for way in found]

    def _ways(self, schema: Schema, path: tuple[str, ...]) -> list[Flat]:
        if isinstance(schema, bool):
            return [[]] if schema else []
        own = {key: value for key, value in schema.items() if key not in ANNOTATIONS}
        if isinstance(own.get("items"), list):
            raise NotExpressible("#", "items of an older draft")
        parts: list[Schema] = []
        if (reference := own.pop("$ref", None)) is not None:
            target = resolve(self._root, reference) if isinstance(reference, str) else None
            if target is None or reference in path:
                raise NotExpressible("#", "a reference that leads nowhere, or round in a circle")
            own_ways = self._branches([target], (*path, reference))
        else:
            own_ways = [[]]
        parts += own.pop("allOf", [])
        choices = own.pop("anyOf", None)
        ways = [self._branches([own_part], path) for own_part in parts]
        if choices is not None:
            ways.append([way for part in choices for way in self._branches([part], path)])
        if prod(map(len, [own_ways, *ways])) > MAX_BRANCHES:
            raise NotExpressible("#", "too many choices at once")
        plain: Flat = [own] if own else []
        found = [
            _distinct([*plain, *(one for way in chosen for one in way)])
            for chosen in product(own_ways, *ways)
        ]
        return [way for way in found if len(way) < 2 or self._overlap.types([*way])]

    def _merge(self, members: Flat) -> dict[str, Any]:
        """One schema for all that applies to a value."""
        out: dict[str, Any] = {}
        if any(one.keys() & set(_OBJECT) for one in members):
            out |= self._object(members)
        if any(one.keys() & set(_ARRAY) for one in members):
            out |= self._array(members)
        rest = [
            {key: value for key, value in one.items() if key not in (*_OBJECT, *_ARRAY)} for one in members
        ]
        rest = _distinct([one for one in rest if one])
        if out.get("additionalProperties") is False and not out.get("patternProperties"):
            rest = [_without_count(one, out.get("properties", {})) for one in rest]
        if len(rest) == 1:
            return {**out, **rest[0]}
        return {**out, "allOf": rest} if rest else out

    def _object(self, members: Flat) -> dict[str, Any]:
        names = dict.fromkeys(name for one in members for name in one.get("properties", {}))
        patterns = {pattern: pattern for one in members for pattern in one.get("patternProperties", {})}
        out: dict[str, Any] = {}
        if names:
            out["properties"] = {
                name: self._reference([part for one in members for part in list_parts(one, name)])
                for name in names
            }
        if patterns:
            out["patternProperties"] = {
                other: self._reference([part for one in members for part in _inside(one, inside)])
                for pattern, inside in separate_patterns(patterns, "#").items()
                if (other := _beside(pattern, names)) is not None
            }
        others = [one["additionalProperties"] for one in members if "additionalProperties" in one]
        if (rest := self._reference(others)) is not True:
            out["additionalProperties"] = rest
        if rest is False and patterns:  # names that no schema fits are no others
            found = {name: part for name, part in out["patternProperties"].items() if part is not False}
            out["patternProperties"] = found
        return out

    def _array(self, members: Flat) -> dict[str, Any]:
        n = max(len(one.get("prefixItems", [])) for one in members)
        prefix = [self._reference([_item(one, index) for one in members]) for index in range(n)]
        rest = self._reference([one.get("items", True) for one in members])
        return ({"prefixItems": prefix} if prefix else {}) | ({} if rest is True else {"items": rest})


def _without_count(schema: dict[str, Any], listed: dict[str, Any]) -> dict[str, Any]:
    """A schema that requires all properties that there may be, if it asks for as many."""
    if schema.get("minProperties") != len(listed):
        return schema
    rest = {key: value for key, value in schema.items() if key != "minProperties"}
    return {**rest, "required": list(dict.fromkeys([*rest.get("required", []), *listed]))}


def _satisfiable(made: dict[str, list[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    """The definitions that a value fits, with those of their branches: the parser refuses others."""
    kept: dict[str, list[dict[str, Any]]] = {}
    while True:
        places = {f"#/$defs/{name}" for name in kept}
        found = {
            name: alive
            for name, branches in made.items()
            if (alive := [one for one in branches if all(_fits_some(part, places) for part in _needed(one))])
        }
        if found == kept:
            return kept
        kept = found


def _needed(branch: dict[str, Any]) -> list[Schema]:
    """The schemas of properties and items that a value has to have."""
    members = [branch, *branch.get("allOf", [])]
    if not all(one.get("type") == "object" for one in members if "required" in one):
        members = []  # other values need no properties
    required = {name for one in members for name in one.get("required", [])}
    return [part for name, part in branch.get("properties", {}).items() if name in required]


def _fits_some(schema: Schema, places: Collection[str]) -> bool:
    """Whether a value fits a schema, where those at some places have one."""
    if isinstance(schema, bool):
        return schema
    return "$ref" not in schema or schema["$ref"] in places


def _pruned(schema: Any, places: Collection[str]) -> Any:
    """A schema with `false` for references to other places."""
    if isinstance(schema, list):
        return [_pruned(part, places) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if not _fits_some(schema, places):
        return False
    pruned = (*_OBJECT, *_ARRAY)
    inner = {key: schema[key] for key in pruned if key in schema}
    return schema | {
        key: {name: _pruned(part, places) for name, part in value.items()}
        if key in ("properties", "patternProperties")
        else _pruned(value, places)
        for key, value in inner.items()
    }


def _inside(schema: dict[str, Any], patterns: list[Any]) -> list[Schema]:
    """The schemas of properties that match some patterns, and no others, and are not named."""
    found = [part for pattern, part in schema.get("patternProperties", {}).items() if pattern in patterns]
    return found or [schema.get("additionalProperties", True)]


def _beside(pattern: str, names: Iterable[str]) -> str | None:
    """A pattern for what another one matches but some names: the parser would merge the schemas of both."""
    found = [match_only(name) for name in names if matches(pattern, name, "#")]
    return region([pattern], found, "#") if found else pattern


def _item(schema: dict[str, Any], index: int) -> Schema:
    prefix = schema.get("prefixItems", [])
    found: Schema = prefix[index] if index < len(prefix) else schema.get("items", True)
    return found


def _distinct(parts: Flat) -> Flat:
    return list({json.dumps(part): part for part in parts}.values())


def _is_leaf(schema: Schema) -> bool:
    """Whether there is no schema and no reference in a schema."""
    return isinstance(schema, dict) and not any(
        key == "$ref" or isinstance(value, (dict, list)) for key, value in schema.items()
    )


# JSON schemas without references that the parser has to merge with what stands beside them.
#
# The parser merges a reference with its neighbours by reading the target there. If it meets the same target
# again further down, it gives up: the schema is circular. Here the target is written out in place, and the
# whole becomes a definition of its own, to which it can refer when it comes again.

MAX_SCHEMAS = 5_000  # after inlining
_MERGED = ("allOf", "anyOf")


def inline_references(schema: Schema) -> Schema | None:
    """A schema whose references have nothing beside them; None if there is no such one, or a large one only.

    >>> inline_references({"$ref": "#/$defs/a", "minimum": 1, "$defs": {"a": {"type": "integer"}}})["allOf"]
    [{'type': 'integer'}]
    """
    if not isinstance(schema, dict) or not isinstance(schema.get("$defs", {}), dict):
        return None
    try:
        return _Inliner(schema).inline_root()
    except NotExpressible:
        return None


class _Inliner:
    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._n_schemas = 0
        self._names: dict[str, str] = {}  # of the definitions that are made, by the schema they are for
        self._open: list[tuple[str, dict[str, Any]]] = []  # those that are still to be made

    def inline_root(self) -> dict[str, Any]:
        made = self._inline(self._root, False, ())
        definitions = {}
        while self._open:
            name, schema = self._open.pop()
            definitions[name] = self._inline(schema, False, ())
        return {**made, "$defs": {**made.get("$defs", {}), **definitions}} if definitions else made

    def _inline(self, schema: Any, is_merged: bool, path: tuple[str, ...]) -> Any:
        """`is_merged`: other schemas are about the same value; `path`: the references on the way here."""
        if not isinstance(schema, dict):
            return schema
        self._n_schemas += 1
        if self._n_schemas > MAX_SCHEMAS:
            raise NotExpressible("#", "too large")
        is_merged = is_merged or _merges(schema)
        if not is_merged or not isinstance(reference := schema.get("$ref"), str):
            return self._inside(schema, is_merged, path)
        target = resolve(self._root, reference)
        if target is None or reference in path:
            raise NotExpressible("#", "a reference that leads nowhere, or round in a circle")
        if isinstance(target, dict):  # its definitions are found at their own place
            target = {key: value for key, value in target.items() if key not in ("$defs", "definitions")}
        beside = self._inside({key: value for key, value in schema.items() if key != "$ref"}, True, path)
        found = self._inline(target, True, (*path, reference))
        return {**beside, "allOf": [*beside.get("allOf", []), found]}

    def _inside(self, schema: dict[str, Any], is_merged: bool, path: tuple[str, ...]) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for key, value in schema.items():
            if key in _MERGED and isinstance(value, list):
                merges = is_merged or (key == "allOf" and len(value) > 1)
                out[key] = [self._inline(part, merges, path) for part in value]
            elif key in LISTS and isinstance(value, list):
                out[key] = [self._other(part) for part in value]
            elif key in SINGLE:
                out[key] = self._other(value)
            elif key in MAPS and isinstance(value, dict):
                out[key] = {name: self._other(part) for name, part in value.items()}
            else:
                out[key] = value
        return out

    def _other(self, schema: Any) -> Any:
        """A schema for another value: a definition where a reference in it is merged."""
        if not isinstance(schema, dict) or not _refers(schema, False):
            return self._inline(schema, False, ())
        key = json.dumps(schema)
        if key not in self._names:
            self._names[key] = f"stretto:m{len(self._names)}"
            self._open.append((self._names[key], schema))
        return {"$ref": f"#/$defs/{self._names[key]}"}


def _merges(schema: dict[str, Any]) -> bool:
    """Whether a schema has several keywords for the same value."""
    return len(schema.keys() - ANNOTATIONS) > 1


def _refers(schema: Any, is_merged: bool) -> bool:
    """Whether there is a reference beside other keywords for the same value."""
    if not isinstance(schema, dict):
        return False
    is_merged = is_merged or _merges(schema)
    if is_merged and "$ref" in schema:
        return True
    return any(
        _refers(part, is_merged or (key == "allOf" and len(schema[key]) > 1))
        for key in _MERGED
        if isinstance(schema.get(key), list)
        for part in schema[key]
    )
