"""JSON schemas in terms that the parser can follow.

The parser (llguidance) knows types, bounds, properties, items, `anyOf` and `allOf`. Other keywords are
replaced by schemas of these that allow exactly the same values; what has no such replacement is refused, with
its place. A schema that needs nothing is left as it is.
"""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from itertools import combinations
from math import prod
from typing import Any

from stretto.errors import InvalidGrammar
from stretto.structured.automata import limited_work
from stretto.structured.decided import decide_numbers, has_excluded_multiples
from stretto.structured.formats import FORMATS, PATTERNS, STRICTER
from stretto.structured.keywords import Unevaluated, contains, counts, dependencies, n_positions, unique
from stretto.structured.merged import inline_references
from stretto.structured.names import Known, property_names
from stretto.structured.negation import Negation, both, cases, either, narrow
from stretto.structured.overlap import TYPES, Overlap, list_values
from stretto.structured.places import (
    ANNOTATIONS,
    LISTS,
    MAPS,
    SINGLE,
    NotExpressible,
    Schema,
    dereference,
    escape_key,
    modern_items,
    schema_error,
    walk_references,
)
from stretto.structured.regular import separate_patterns, without_looking
from stretto.structured.unique import UNIQUE_KEY
from stretto.structured.workers import check_budget

# Closed objects: properties that a schema does not name are forbidden, unless it says otherwise.

_OPEN_WORDS = "additionalProperties patternProperties unevaluatedProperties propertyNames"
_OPEN = frozenset(_OPEN_WORDS.split())
# The schemas under these describe the same value.
_SAME_LISTS = ("allOf", "anyOf", "oneOf")
_SAME = frozenset({*_SAME_LISTS, "not", "if", "then", "else", "dependentSchemas", "dependencies"})


def close_objects(schema: Any) -> Any:
    """A schema whose objects have only properties that are named, in it or in its branches.

    >>> close_objects({"properties": {"a": {}}})
    {'properties': {'a': {}}, 'additionalProperties': False}
    """
    return _closed(schema, schema, is_part=False)


def _closed(schema: Any, root: Schema, is_part: bool) -> Any:
    """`is_part`: the schema stands in a branch of one that is closed itself."""
    if not isinstance(schema, dict):
        return schema
    names = None if is_part else _names(schema, root, MAX_DEPTH)
    closes = bool(names)
    out = {key: _within(key, value, root, is_part or closes) for key, value in schema.items()}
    if closes and names is not None:
        if names <= schema.get("properties", {}).keys():
            out["additionalProperties"] = False
        else:
            listed = {"properties": dict.fromkeys(sorted(names), True), "additionalProperties": False}
            out["allOf"] = [*out.get("allOf", []), listed]
    return out


def _within(key: str, value: Any, root: Schema, is_part: bool) -> Any:
    part = is_part and key in _SAME
    if key in LISTS and isinstance(value, list):
        return [_closed(item, root, part) for item in value]
    if key in SINGLE:
        return _closed(value, root, part)
    if key in MAPS and isinstance(value, dict):
        return {name: _closed(item, root, part) for name, item in value.items()}
    return value


def _names(schema: Schema, root: Schema, depth: int) -> set[str] | None:
    """The properties that a schema and its branches name; None if one of them says what others may be."""
    if isinstance(schema, bool) or depth == 0:
        return set()
    if schema.keys() & _OPEN:
        return None
    found = set(schema.get("properties", {}))
    parts = [part for key in _SAME_LISTS for part in schema.get(key, [])]
    parts += [schema[key] for key in ("if", "then", "else") if key in schema]
    parts += [part for part in schema.get("dependentSchemas", {}).values() if isinstance(part, dict)]
    if "$ref" in schema:
        try:
            parts.append(dereference(root, {"$ref": schema["$ref"]}))
        except NotExpressible:
            return None
    for part in parts:
        names = _names(part, root, min(depth - 1, 8))
        if names is None:
            return None
        found |= names
    return found


MAX_SCHEMAS = 20_000  # after rewriting
MAX_DEPTH = 100
MIN_CONDITIONS = 3  # on one property, before they become one choice
MAX_CHOICES = 32  # branches of a oneOf that overlap
MAX_CASES = 24  # in which a value fits none of them, before unlikely ones are left out

_SPECIAL_WORDS = (
    "not if then else dependentRequired dependentSchemas dependencies propertyNames contains "
    "minContains maxContains uniqueItems oneOf format additionalItems unevaluatedItems "
    "unevaluatedProperties minProperties maxProperties patternProperties"
)
SPECIAL = frozenset(_SPECIAL_WORDS.split())
_WRONG_KINDS = (AttributeError, TypeError, KeyError, ValueError, IndexError)  # keywords with such values
_UNSUPPORTED = ("$dynamicRef", "$recursiveRef")


def rewrite_schema(schema: Schema, *, closed: bool = False, checks: bool = False) -> Schema:
    """A schema without the keywords that the parser lacks; raises `InvalidGrammar` at what cannot be said.

    With `closed`, objects have only properties that are named. With `checks`, arrays whose items must differ
    are marked for `unique`, which checks them as they are written, if they cannot be written out.
    """
    try:
        closing = close_objects(schema) if closed else schema
        return _rewritten(closing, checks)
    except _WRONG_KINDS:
        raise schema_error("#", "a keyword in the schema has a value of the wrong kind") from None
    except NotExpressible as error:
        # What a reference leads to is for other values too; in its place, more is known of the values.
        with suppress(NotExpressible, InvalidGrammar, *_WRONG_KINDS):
            inlined = inline_references(closing)
            if isinstance(inlined, dict) and inlined != closing:
                return _rewritten(_without_unused(inlined), checks)
        raise schema_error(error.place, error.reason) from None


def _without_unused(schema: dict[str, Any]) -> Schema:
    """A schema without definitions that nothing else in it refers to."""
    kept = {key: value for key, value in schema.items() if key not in ("$defs", "definitions")}
    places = [(key, name) for key in ("$defs", "definitions") for name in schema.get(key, {})]
    while True:
        used = {reference.removeprefix("#") for reference in walk_references(kept)}
        more = [
            (key, name)
            for key, name in places
            if name not in kept.get(key, {})
            and any(f"{one}/".startswith(f"/{key}/{escape_key(name)}/") for one in used)
        ]
        if not more:
            return kept
        for key, name in more:
            kept[key] = {**kept.get(key, {}), name: schema[key][name]}


def _rewritten(schema: Schema, checks: bool) -> Schema:
    rewriter = _Rewriter(schema, checks)
    try:
        with limited_work():
            return rewriter.rewrite(schema, "#")
    except _WRONG_KINDS:
        reason = "a keyword here, or a schema that it refers to, has a value of the wrong kind"
        raise schema_error(rewriter.place, reason) from None


class _Rewriter:
    """One schema on its way."""

    def __init__(self, root: Schema, checks: bool) -> None:
        self._root, self._checks = root, checks
        self._overlap = Overlap(root)
        self._negation = Negation(root, self._overlap)
        self._references = sorted({reference.removeprefix("#") for reference in walk_references(root)})
        self._unevaluated = Unevaluated(root, self._negation)
        self._n_positions = n_positions(root)
        self._has_multiples = has_excluded_multiples(root)
        self._n_schemas = 0
        self.place = "#"  # of the schema that is being rewritten

    def rewrite(self, schema: Schema, place: str, depth: int = 0, given: Schema = True) -> Schema:
        """The schema at `place`, and all within it, rewritten; the values that it is for fit `given` too."""
        if isinstance(schema, bool):
            return schema
        self._n_schemas += 1
        check_budget()
        if self._n_schemas > MAX_SCHEMAS or depth > MAX_DEPTH:
            raise NotExpressible(place, "the schema becomes too large when its conditions are written out")
        if not isinstance(schema, dict):
            raise NotExpressible(place, "a schema is an object, true or false")
        self.place = place
        rest = {key: value for key, value in schema.items() if key != "$schema"}
        rest = modern_items(rest)
        if (numbers := self._numbers(rest, place)) is not None:
            return numbers
        if (members := _by_value(rest)) and self._overlap.types([rest, given]) <= {"object"}:
            rest["allOf"] = members
        members = self._members(rest, place, given)
        out = {key: self._within(key, value, place, depth, rest, given) for key, value in rest.items()}
        if members:
            beside = both([given, rest])
            lowered = [self.rewrite(member, place, depth + 1, beside) for member in members]
            out["allOf"] = [*out.get("allOf", []), *_in_order(rest), *lowered]
        return out

    def _numbers(self, schema: dict[str, Any], place: str) -> Schema | None:
        """A schema of numbers with multiples of some and not of others, written out; None for all others."""
        is_choice = schema.keys() & {"not", "allOf", "anyOf", "oneOf", "$ref"}
        if not self._has_multiples or not is_choice or not self._overlap.types([schema]) <= {"number"}:
            return None
        made = decide_numbers(schema, self._root)
        if not isinstance(made, dict):
            return made
        for key in ("$defs", "definitions"):
            for name, part in schema.get(key, {}).items():
                with suppress(NotExpressible):  # nothing else may refer to it
                    made.setdefault(key, {})[name] = self.rewrite(part, f"{place}/{key}/{escape_key(name)}")
        return made

    def _within(
        self, key: str, value: Any, place: str, depth: int, schema: dict[str, Any], given: Schema
    ) -> Any:
        """The value of a keyword of `schema`, with the schemas in it rewritten."""
        here = f"{place}/{escape_key(key)}"
        if key in LISTS and isinstance(value, list):
            beside = self._beside(key, here, schema, given)
            return [self.rewrite(part, f"{here}/{i}", depth + 1, beside) for i, part in enumerate(value)]
        if key in SINGLE and isinstance(value, (dict, bool)):
            return self.rewrite(value, here, depth + 1)
        if key in MAPS and isinstance(value, dict):
            return {
                name: self.rewrite(part, f"{here}/{escape_key(name)}", depth + 1)
                if isinstance(part, (dict, bool))
                else part
                for name, part in value.items()
            }
        return value

    def _beside(self, key: str, here: str, schema: dict[str, Any], given: Schema) -> Schema:
        """What the values of the schemas in a list fit as well.

        The order matters, since two schemas must not take each other for granted: keywords without choices
        come first, then `allOf` (those members first that have no `oneOf`, which alone asks), then `anyOf`. A
        schema that a reference leads to is for other values too, and takes nothing for granted.
        """
        pointer = here.removeprefix("#")
        if key not in ("allOf", "anyOf") or any(one.startswith(pointer) for one in self._references):
            return True
        plain = {name: value for name, value in schema.items() if name not in ("allOf", "anyOf")}
        members = schema.get("allOf", [])
        return both([given, plain, *(members if key == "anyOf" else filter(_asks_nothing, members))])

    def _members(self, rest: dict[str, Any], place: str, given: Schema) -> list[Schema]:
        """Take the keywords that the parser lacks out of `rest`; return what stands for them."""
        members: list[Schema] = []
        for keyword in _UNSUPPORTED:
            if keyword in rest:
                raise NotExpressible(f"{place}/{keyword}", "this keyword is not supported")
        if isinstance(name := rest.get("format"), str):
            if name not in FORMATS:
                del rest["format"]  # replaced by a pattern, or an annotation
            if pattern := PATTERNS.get(name, STRICTER.get(name)):
                members.append({"pattern": pattern})
        # These two look at the keywords beside them, so they come first.
        if "unevaluatedProperties" in rest:
            members += self._unevaluated.properties(rest, f"{place}/unevaluatedProperties")
        if "unevaluatedItems" in rest:
            members += self._unevaluated.items(rest, f"{place}/unevaluatedItems")
        rest.pop("unevaluatedProperties", None), rest.pop("unevaluatedItems", None)
        self._plain_patterns(rest, place)
        members += self._object_members(rest, place)
        members += self._array_members(rest, place)
        members += self._choices(rest, place, given)
        return members

    def _plain_patterns(self, rest: dict[str, Any], place: str) -> None:
        """Replace patterns that look ahead, and those of properties that overlap."""
        if isinstance(pattern := rest.get("pattern"), str):
            rest["pattern"] = without_looking(pattern, f"{place}/pattern")
        parts = rest.get("patternProperties")
        if not isinstance(parts, dict):
            return
        here = f"{place}/patternProperties"
        parts = {without_looking(name, here): part for name, part in parts.items()}
        if len(parts) > 1:
            parts = {name: both(found) for name, found in separate_patterns(parts, here).items()}
        rest["patternProperties"] = parts

    def _choices(self, rest: dict[str, Any], place: str, given: Schema) -> list[Schema]:
        members: list[Schema] = []
        if "not" in rest:
            unwanted = rest.pop("not")
            known = self._known([given, rest])
            members.append(self._negation.negate(unwanted, f"{place}/not", known))
        if "if" in rest:
            condition = rest.pop("if")
            then, other = rest.pop("then", True), rest.pop("else", True)
            if then is not True or other is not True:
                known = self._known([given, rest])
                opposite = self._negation.negate(condition, f"{place}/if", known)
                members.append(either([both([condition, then]), both([opposite, other])]))
        rest.pop("then", None), rest.pop("else", None)
        if isinstance(rest.get("oneOf"), list):
            branches = rest.pop("oneOf")
            members.append(self._one_of(branches, f"{place}/oneOf", both([given, rest])))
        return members

    def _known(self, fits: list[Schema]) -> Known:
        """What is known of the names of properties where some schemas fit."""
        listed = frozenset(name for name, _ in self._overlap.parts(fits))
        overlap = self._overlap
        names, required, most = overlap.names(fits), overlap.required(fits), overlap.most_properties(fits)
        bounds = overlap.bounds(fits)
        return Known(names=names, listed=listed, required=required, most=most, bounds=bounds)

    def _one_of(self, branches: list[Schema], place: str, given: Schema) -> Schema:
        """The choice as `anyOf`: branches that may overlap exclude each other explicitly."""
        against: dict[int, dict[int, frozenset[str]]] = {}  # the types of values that may fit two branches
        for i, j in combinations(range(len(branches)), 2):
            if types := self._overlap.types([branches[i], branches[j], given]):
                against.setdefault(i, {})[j] = types
                against.setdefault(j, {})[i] = types
        if len(against) > MAX_CHOICES:
            raise NotExpressible(place, f"more than {MAX_CHOICES} branches may overlap; use anyOf")
        made: list[Schema] = []
        for i, branch in enumerate(branches):
            fits = [branch, given]
            for is_brief in (False, True):
                others = [
                    self._unless(branches[j], f"{place}/{j}", types, fits, is_brief)
                    for j, types in against.get(i, {}).items()
                ]
                common, rest = _factored(others)
                if prod(len(cases(other)) for other in rest) <= MAX_CASES:
                    break
            made.append(both([branch, either([*common, both(rest)]) if common else both(rest)]))
        return either(made)

    def _unless(
        self, branch: Schema, place: str, types: frozenset[str], fits: list[Schema], is_brief: bool
    ) -> Schema:
        """What does not fit a branch of a `oneOf`, for values that fit another; only these types fit both."""
        try:
            known = replace(
                self._known(fits), types=types, parts=self._overlap.parts(fits), is_brief=is_brief
            )
            useful = self._useful(self._opposite(branch, place, known, fits), fits)
        except NotExpressible as error:
            useful = self._useful(self._negation.negate_some(branch, place, known), fits)
            if not useful:
                raise NotExpressible(
                    error.place,
                    f"a branch of oneOf may overlap with another, and {error.reason}; use anyOf, or a "
                    "property with a different const in each branch that all require",
                ) from None
        left = self._overlap.types(fits) - types
        return either([{"type": [name for name in TYPES if name in left]} if left else False, *useful])

    def _useful(self, opposite: Schema, fits: list[Schema]) -> list[Schema]:
        """The cases of an opposite that values which fit `fits` may be."""
        return [case for case in cases(opposite) if self._overlap.types([case, *fits])]

    def _opposite(self, branch: Schema, place: str, known: Known, fits: list[Schema]) -> Schema:
        """The opposite of a schema for values that fit `fits`."""
        try:
            return self._negation.negate(branch, place, known)
        except NotExpressible:
            with suppress(NotExpressible):
                brief = narrow(branch, fits, self._root, self._overlap)
                return self._negation.negate(brief, place, known)
            raise

    def _object_members(self, rest: dict[str, Any], place: str) -> list[Schema]:
        members: list[Schema] = []
        for key in ("dependentRequired", "dependentSchemas", "dependencies"):
            members += dependencies(rest.pop(key, {}))
        if "propertyNames" in rest:
            members += property_names(rest.pop("propertyNames"), self._root, f"{place}/propertyNames")
        if rest.keys() & {"minProperties", "maxProperties"}:
            key = "minProperties" if "minProperties" in rest else "maxProperties"
            if (replaced := counts(rest, f"{place}/{key}")) is not None:
                members += replaced
                rest.pop("minProperties", None), rest.pop("maxProperties", None)
        return members

    def _array_members(self, rest: dict[str, Any], place: str) -> list[Schema]:
        members: list[Schema] = []
        if "contains" in rest:
            members += contains(rest, self._n_positions, self._negation, f"{place}/contains")
        for key in ("contains", "minContains", "maxContains"):
            rest.pop(key, None)
        if rest.pop("uniqueItems", False) is True:
            replaced = unique(rest, self._root, self._overlap, f"{place}/uniqueItems")
            if replaced is None and self._checks:
                rest[UNIQUE_KEY] = True  # checked as the array is written
            elif replaced is None:
                raise NotExpressible(
                    f"{place}/uniqueItems",
                    "items are only kept apart where they have few values (enum, const, boolean) or are few; "
                    "leave it out, and drop duplicates from the answer",
                )
            members += replaced or []
        return members


def _by_value(schema: dict[str, Any]) -> list[Schema] | None:
    """The `allOf` of a schema of objects with one choice for all conditions on the value of one property.

    The parser would take each with each of several conditions, of which one at most applies.
    """
    members = schema.get("allOf")
    found = [_on_value(one) for one in members] if isinstance(members, list) else []
    names = Counter(one[0] for one in found if one is not None)
    if not names or not isinstance(members, list) or (most := names.most_common(1)[0])[1] < MIN_CONDITIONS:
        return None
    name = most[0]
    ifs = [(one[1], one[2], part) for one, part in zip(found, members, strict=True) if one and one[0] == name]
    applying: dict[tuple[bool, ...], list[str]] = {}  # which conditions apply to which values
    for value in dict.fromkeys(value for values, _, _ in ifs for value in values):
        applying.setdefault(tuple(value in values for values, _, _ in ifs), []).append(value)
    cases: list[tuple[Schema, tuple[bool, ...]]] = [
        ({"type": "object", "required": [name], "properties": {name: {"enum": values}}}, applies)
        for applies, values in applying.items()
    ]
    others: Schema = {"not": {"enum": [value for values in applying.values() for value in values]}}
    cases.append(({"required": [name], "properties": {name: others}}, (False,) * len(ifs)))
    cases.append(({"properties": {name: False}}, tuple(not is_required for _, is_required, _ in ifs)))
    choices: list[Schema] = []
    for case, applies in cases:
        asked = [
            part.get("then" if one else "else", True) for one, (*_, part) in zip(applies, ifs, strict=True)
        ]
        choices.append(both([case, *{json.dumps(part): part for part in asked}.values()]))
    at = next(i for i, one in enumerate(found) if one is not None and one[0] == name)
    rest = [part for one, part in zip(found, members, strict=True) if one is None or one[0] != name]
    return [*rest[:at], either(choices), *rest[at:]]


def _on_value(schema: Any) -> tuple[str, list[str], bool] | None:
    """The name of a property, its texts and whether it is required, if a schema is a condition on these."""
    if (
        not isinstance(schema, dict)
        or "if" not in schema
        or schema.keys() - {"if", "then", "else"} - ANNOTATIONS
    ):
        return None
    condition = schema["if"]
    if not isinstance(condition, dict) or condition.keys() - {"properties", "required", "type"} - ANNOTATIONS:
        return None
    parts, required = condition.get("properties"), condition.get("required", [])
    if condition.get("type", "object") != "object" or not isinstance(parts, dict) or len(parts) != 1:
        return None
    ((name, part),) = parts.items()
    plain = isinstance(part, dict) and not part.keys() - {"const", "enum", "type"} - ANNOTATIONS
    values = list_values(part) if plain and part.get("type", "string") == "string" else None
    if required not in ([], [name]) or not values or not all(isinstance(value, str) for value in values):
        return None
    return name, values, bool(required)


def _factored(choices: list[Schema]) -> tuple[list[Schema], list[Schema]]:
    """The cases that all of some choices have, and the choices without these, each once."""
    known = [{json.dumps(case): case for case in cases(choice)} for choice in choices]
    common = set.intersection(*map(set, known)) if len(known) > 1 else set()
    rest = [either([case for key, case in found.items() if key not in common]) for found in known]
    first = known[0].items() if known else ()
    return [case for key, case in first if key in common], list(
        {json.dumps(one): one for one in rest}.values()
    )


def _in_order(schema: dict[str, Any]) -> list[Schema]:
    """A schema that allows everything and names properties in their order.

    The parser takes the order from what it merges first; without it, properties that a condition names would
    come before all others.
    """
    listed = schema.get("properties")
    return (
        [{"properties": dict.fromkeys(listed, True)}] if isinstance(listed, dict) and len(listed) > 1 else []
    )


def _asks_nothing(schema: Any) -> bool:
    """Whether there is no `oneOf` in a schema."""
    if isinstance(schema, dict):
        return "oneOf" not in schema and all(map(_asks_nothing, schema.values()))
    return not isinstance(schema, list) or all(map(_asks_nothing, schema))
