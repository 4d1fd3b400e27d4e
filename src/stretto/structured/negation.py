"""The opposite of a JSON schema: a schema for exactly the values that do not fit it.

Not every schema has one that the parser can follow: then `NotExpressible` names the place. Opposites are
used where they restrict, never negated again, so one that allows less is safe: that of "integer" is.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from fractions import Fraction
from itertools import combinations, pairwise
from math import ceil, floor, isinf
from typing import Any

from stretto.structured.formats import TOO_WIDE, WIDE
from stretto.structured.names import ANY, TYPE_OF_KEYWORD, Known, property_names, with_match, with_property
from stretto.structured.overlap import (
    TYPES,
    Overlap,
    are_equal,
    list_types,
    list_values,
    name_type,
    property_schemas,
)
from stretto.structured.patterns import match_only, other_texts
from stretto.structured.places import NotExpressible, Schema, dereference, escape_key, is_old, modern_items
from stretto.structured.regular import complement, matches, region
from stretto.structured.workers import check_budget

MAX_DEPTH = 80
MAX_SCHEMAS = 2_000  # of one opposite
MAX_VALUES = 200  # of an enum whose opposite is wanted
MAX_PAIRS = 100  # of the branches of a oneOf whose opposite is wanted
MAX_POSITIONS = 16  # among which an item stands that does not fit
MAX_LAX_POSITIONS = 2  # the same where not all can be said anyway

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
_NO_OPPOSITE_WORDS = "uniqueItems unevaluatedItems unevaluatedProperties $dynamicRef $recursiveRef"
_NO_OPPOSITE = frozenset(_NO_OPPOSITE_WORDS.split())


class Negation:
    """Opposites within one schema, whose references it follows."""

    def __init__(self, root: Schema, overlap: Overlap) -> None:
        self._root, self._overlap = root, overlap
        self._is_old = is_old(root)
        self._n_schemas = 0  # of the opposite that is being made
        self._references: list[Any] = []  # that lead to the schema whose opposite is being made
        self._is_lax = False  # leave out what has no opposite

    def negate_some(self, schema: Schema, place: str, known: Known) -> Schema:
        """As `negate`, for fewer values: keywords that have no opposite are left out."""
        self._is_lax = True
        try:
            return self.negate(schema, place, known)
        finally:
            self._is_lax = False

    def negate(self, schema: Schema, place: str, known: Known = ANY, depth: int = MAX_DEPTH) -> Schema:
        """A schema for the values that do not fit `schema`, which stands at `place`."""
        if depth == MAX_DEPTH:
            self._n_schemas = 0
        reference = schema.get("$ref") if isinstance(schema, dict) else None
        if reference is not None and reference in self._references:
            raise NotExpressible(place, "the opposite of a schema that refers to itself is not supported")
        self._references.append(reference)
        try:
            return self._negated(dereference(self._root, schema, place), place, known, depth)
        finally:
            self._references.pop()

    def _negated(self, schema: Schema, place: str, known: Known, depth: int) -> Schema:
        if isinstance(schema, bool):
            return not schema
        check_budget()
        self._n_schemas += 1
        if depth == 0 or self._n_schemas > MAX_SCHEMAS:
            raise NotExpressible(place, "the opposite of a schema this large is not supported")
        schema = modern_items(schema)
        branches: list[Schema] = []
        own = list_types(schema)  # values of other types are told by the type
        for key, value in schema.items():
            if known.looks(key) and TYPE_OF_KEYWORD.get(key) in (None, *own):
                here = f"{place}/{escape_key(key)}"
                try:
                    branches += self._opposites(key, value, schema, here, known, depth - 1)
                except NotExpressible:
                    if not self._is_lax or self._n_schemas > MAX_SCHEMAS:
                        raise
        return either(branches)

    def _opposites(
        self, key: str, value: Any, schema: dict[str, Any], place: str, known: Known, depth: int
    ) -> list[Schema]:
        """Schemas for the values that one keyword refuses."""
        if key.startswith("unevaluated") and (value is True or value == {}):
            return []  # it refuses nothing
        if key in _NO_OPPOSITE or (key == "format" and value in TOO_WIDE):
            raise NotExpressible(place, "the opposite of this keyword is not supported")
        if key == "pattern" or (key == "format" and value in WIDE):
            found = complement(WIDE[value] if key == "format" else value, place)
            return [] if found is None else [{"type": "string", "pattern": found}]
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
        if key == "multipleOf":
            return _between_multiples(value, known, place)
        if TYPE_OF_KEYWORD.get(key) == "object":
            return self._other_objects(key, value, schema, place, known, depth)
        if TYPE_OF_KEYWORD.get(key) == "array":
            return self._other_arrays(key, value, schema, place, depth)
        return self._other_choices(key, value, schema, place, known, depth)

    def _other_choices(
        self, key: str, value: Any, schema: dict[str, Any], place: str, known: Known, depth: int
    ) -> list[Schema]:
        if key == "not":
            return [value]
        if key == "if":
            parent = place.rpartition("/")[0]
            then = self.negate(schema.get("then", True), f"{parent}/then", known, depth)
            other = self.negate(schema.get("else", True), f"{parent}/else", known, depth)
            return [both([value, then]), both([self.negate(value, place, known, depth), other])]
        if key not in ("allOf", "anyOf", "oneOf"):
            return []  # an annotation, or `then` and `else`, which stand with their `if`
        parts = [self.negate(part, f"{place}/{i}", known, depth) for i, part in enumerate(value)]
        if key == "allOf":
            return parts
        return [both(parts), *(self._pairs(value, place) if key == "oneOf" else [])]

    def _pairs(self, branches: list[Schema], place: str) -> list[Schema]:
        """Two branches at once, for each two of a `oneOf` that may overlap."""
        pairs = [pair for pair in combinations(branches, 2) if not self._overlap.disjoint(*pair)]
        if len(pairs) > MAX_PAIRS:
            raise NotExpressible(place, f"more than {MAX_PAIRS} pairs of its branches may overlap")
        return [both(list(pair)) for pair in pairs]

    def _other_objects(
        self, key: str, value: Any, schema: dict[str, Any], place: str, known: Known, depth: int
    ) -> list[Schema]:
        if key == "required":
            return [{"type": "object", "properties": {name: False}} for name in value]
        if key == "dependencies" and not self._is_old:
            raise NotExpressible(
                place, "newer drafts do not know this keyword; give $schema, or dependentSchemas"
            )
        if key in ("patternProperties", "additionalProperties"):
            if key == "additionalProperties" and "patternProperties" in schema:
                return []  # it is looked at with the patterns
            return self._other_names(schema, place, known, depth)
        if key == "properties":
            return self._other_properties(value, schema, place, known, depth)
        if key == "propertyNames":
            if (unwanted := _unwanted_names(value)) is not None:
                return [with_property(name, True) for name in unwanted]
            names = property_names(value, self._root, place)
            return [self.negate(part, place, known, depth) for part in names]
        found: list[Schema] = []
        for name, needed in value.items():  # of a dependency
            present: Schema = {"type": "object", "required": [name]}
            if isinstance(needed, list):
                lacking = [other for other in needed if other != name]
                found += [both([present, {"properties": {other: False}}]) for other in lacking]
            else:
                found.append(
                    both([present, self.negate(needed, f"{place}/{escape_key(name)}", known, depth)])
                )
        return found

    def _other_properties(
        self, parts: dict[str, Schema], schema: dict[str, Any], place: str, known: Known, depth: int
    ) -> list[Schema]:
        found: list[Schema] = []
        for name, part in parts.items():
            if known.has_not(name) or known.fits(name, part):
                continue
            if (described := known.find_schemas(name)) and not self._overlap.types([*described, part]):
                found.append({"type": "object", "required": [name]})  # it cannot fit
                continue
            required = schema.get("required", [])
            # A property that does not fit the schema, and is unknown otherwise; others have to be absent.
            is_unlikely = bool(required) and not known.describes(name)
            if is_unlikely and known.is_brief:
                continue
            try:
                opposite = self.negate(part, f"{place}/{escape_key(name)}", ANY, depth)
            except NotExpressible:
                if not is_unlikely and not self._is_lax:
                    raise
                continue
            found += [] if opposite is False else [with_property(name, opposite)]
        return found

    def _other_names(self, schema: dict[str, Any], place: str, known: Known, depth: int) -> list[Schema]:
        """Objects with a property that fits neither its pattern's schema nor `additionalProperties`."""
        listed, parts = schema.get("properties", {}), schema.get("patternProperties", {})
        patterns: dict[str, list[str]] = {}  # of the names for which the same values are wrong
        opposites: dict[str, Schema] = {}
        for pattern, part in parts.items():
            opposite = self.negate(part, f"{place}/{escape_key(pattern)}", ANY, depth)
            opposites[key := json.dumps(opposite)] = opposite
            patterns.setdefault(key, []).append(pattern)
        rest = schema.get("additionalProperties", True)
        opposite = self.negate(rest, f"{place.rpartition('/')[0]}/additionalProperties", ANY, depth)
        if opposite is not False and known.names is not None:
            others = sorted(known.names - listed.keys())
            left = [name for name in others if not any(matches(one, name, place) for one in parts)]
            return self._matching(patterns, opposites, known, place) + [
                with_property(name, opposite) for name in left
            ]
        if (
            opposite is not False
            and (found := region([], [*parts, *map(match_only, listed)], place)) is not None
        ):
            opposites[key := json.dumps(opposite)] = opposite
            patterns.setdefault(key, []).append(found)
        return self._matching(patterns, opposites, known, place)

    def _matching(
        self, patterns: dict[str, list[str]], opposites: dict[str, Schema], known: Known, place: str
    ) -> list[Schema]:
        """Objects with a property that matches one of some patterns and is wrong there."""
        return [
            case
            for key, found in patterns.items()
            if opposites[key] is not False
            for case in with_match("|".join(found), opposites[key], known, place)
        ]

    def _other_arrays(
        self, key: str, value: Any, schema: dict[str, Any], place: str, depth: int
    ) -> list[Schema]:
        if key == "prefixItems":
            parts = [self.negate(part, f"{place}/{i}", ANY, depth) for i, part in enumerate(value)]
            return [_with_item(i, part) for i, part in enumerate(parts) if part is not False]
        if key == "items":
            if value is True or value == {}:
                return []
            n_before = len(schema.get("prefixItems", []))
            if value is False:
                return [{"type": "array", "minItems": n_before + 1}]
            opposite = self.negate(value, place, ANY, depth)
            if self._is_lax:
                return [_with_item(n_before + i, opposite) for i in range(MAX_LAX_POSITIONS)]
            if n_before == 0:
                return [{"type": "array", "contains": opposite}]
            return [_with_item(i, opposite) for i in range(n_before, MAX_POSITIONS)]
        if key == "contains" and "minContains" not in schema and "maxContains" not in schema:
            return [{"type": "array", "items": self.negate(value, place, ANY, depth)}]
        if "contains" in schema:
            raise NotExpressible(place, "the opposite of a count is not supported")
        return []

    def _other_values(self, values: list[Any], place: str, depth: int) -> list[Schema]:
        if len(values) > MAX_VALUES:
            raise NotExpressible(place, f"the opposite of more than {MAX_VALUES} values is not supported")
        kinds = {name_type(value) for value in values}
        found: list[Schema] = []
        if others := [name for name in TYPES if name not in kinds]:
            found.append({"type": others})
        if "boolean" in kinds:
            left = [flag for flag in (True, False) if not any(are_equal(flag, value) for value in values)]
            found += [{"const": flag} for flag in left]
        if "number" in kinds:
            found += _other_numbers(value for value in values if name_type(value) == "number")
        if "string" in kinds:
            texts = [value for value in values if isinstance(value, str)]
            found.append({"type": "string", "pattern": f"^{other_texts(texts)}$"})
        for name in ("array", "object"):
            if name in kinds:
                apart = [_spelled_out(value) for value in values if name_type(value) == name]
                opposites = [self.negate(part, place, ANY, depth) for part in apart]
                found += cases(both(opposites))
        return found


def either(branches: list[Schema]) -> Schema:
    """A schema for what fits one of several."""
    useful = [branch for branch in branches if branch is not False]
    if True in [branch for branch in useful if isinstance(branch, bool)] or {} in useful:
        return True
    if not useful:
        return False
    return useful[0] if len(useful) == 1 else {"anyOf": useful}


def cases(schema: Schema) -> list[Schema]:
    """The branches of a schema that is a choice and nothing else."""
    is_choice = isinstance(schema, dict) and list(schema) == ["anyOf"]
    return schema["anyOf"] if is_choice else [schema]  # type: ignore[index]  # it is a dict


def both(parts: list[Schema]) -> Schema:
    """A schema for what fits all of several."""
    useful = [part for part in parts if part is not True and part != {}]
    if any(part is False for part in useful):
        return False
    if not useful:
        return True
    return useful[0] if len(useful) == 1 else {"allOf": useful}


def _unwanted_names(schema: Schema) -> list[str] | None:
    """The names that a schema of names refuses, if they are listed."""
    inner = schema.get("not") if isinstance(schema, dict) and len(schema) == 1 else None
    if not isinstance(inner, dict) or not inner.keys() <= {"const", "enum"}:
        return None
    values = list_values(inner)
    return None if values is None else [value for value in values if isinstance(value, str)]


def _with_item(index: int, part: Schema) -> Schema:
    return {"type": "array", "prefixItems": [True] * index + [part], "minItems": index + 1}


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


def _between_multiples(step: float, known: Known, place: str) -> list[Schema]:
    """Numbers between each two multiples of an integer that are next to each other, within known bounds."""
    low, high = known.bounds
    if isinf(low) or isinf(high) or step <= 0 or any(number % 1 for number in (step, low, high)):
        raise NotExpressible(
            place,
            "its opposite needs an integer, and integers as minimum and maximum beside the condition",
        )
    first, last = floor(Fraction(low) / int(step)), ceil(Fraction(high) / int(step))
    if last - first > MAX_VALUES:
        raise NotExpressible(place, f"more than {MAX_VALUES} multiples are between minimum and maximum")
    multiples = [k * int(step) for k in range(first, last + 1)]
    return [
        {"type": "number", "exclusiveMinimum": below, "exclusiveMaximum": above}
        for below, above in pairwise(multiples)
    ]


def _spelled_out(value: Any) -> Schema:
    """An array or object as a schema by its parts; the opposites of these are of its type."""
    if isinstance(value, list):
        return {
            "prefixItems": [{"const": item} for item in value],
            "minItems": len(value),
            "maxItems": len(value),
        }
    return {
        "properties": {key: {"const": item} for key, item in value.items()},
        "required": list(value),
        "maxProperties": len(value),
    }


# JSON schemas for values of which something is known: what cannot matter to these is left out.

MAX_NAMES = 32
MAX_NARROWED_DEPTH = 8
_OBJECT_KEYWORDS = ("properties", "patternProperties", "additionalProperties")


def narrow(schema: Schema, fits: list[Schema], root: Schema, overlap: Overlap, depth: int = 0) -> Schema:
    """A schema that says the same as another of values that fit all of `fits`, and anything of others.

    >>> number, text = {"type": "number"}, {"type": "string", "minLength": 2}
    >>> narrow({"oneOf": [number, text]}, [{"type": "string"}], {}, Overlap({}))
    {'oneOf': [{'type': 'string', 'minLength': 2}]}
    """
    schema = dereference(root, schema)
    if isinstance(schema, bool) or depth > MAX_NARROWED_DEPTH:
        return schema
    out = dict(schema)
    for key in ("anyOf", "oneOf"):
        if isinstance(branches := schema.get(key), list):
            out[key] = [part for part in branches if overlap.types([part, *fits])]
            if not out[key]:
                return False
    for key in ("allOf", "anyOf", "oneOf"):
        if isinstance(out.get(key), list):
            out[key] = [narrow(part, fits, root, overlap, depth + 1) for part in out[key]]
    names = overlap.names(fits)
    members = overlap.members(fits)
    if names is None or not members or len(names) > MAX_NAMES or not schema.keys() & set(_OBJECT_KEYWORDS):
        return out
    # All names are known: each gets what is about it, and there are no others.
    out = {key: value for key, value in out.items() if key not in _OBJECT_KEYWORDS}
    parts: dict[str, Schema] = {}
    for name in sorted(names):
        known = [part for member in members for part in property_schemas(member, name)]
        own = [narrow(part, known, root, overlap, depth + 1) for part in list_parts(schema, name)]
        if (part := both(own)) is not True:
            parts[name] = part
    return {**out, "properties": parts}


def list_parts(schema: dict[str, Any], name: str) -> list[Schema]:
    """The schemas of a property."""
    found = [schema["properties"][name]] if name in schema.get("properties", {}) else []
    patterns = schema.get("patternProperties", {})
    found += [part for pattern, part in patterns.items() if matches(pattern, name, "#")]
    return found or [schema.get("additionalProperties", True)]
