"""Keywords of arrays in terms that the parser can follow: `contains`, `uniqueItems`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, permutations
from math import comb
from typing import Any

from stretto.structured.negation import Negation, either
from stretto.structured.overlap import TYPES, Overlap, same, type_of, values_of
from stretto.structured.places import NotExpressible, Schema, dereferenced

MAX_POSITIONS = 16  # among which the items stand that `contains` asks for
MAX_BRANCHES = 400  # that one keyword may become

NO_ARRAY: Schema = {"type": [name for name in TYPES if name != "array"]}


def contains(schema: dict[str, Any], negation: Negation, place: str) -> list[Schema]:
    """What `contains`, `minContains` and `maxContains` ask for.

    The items that are asked for stand among the first 16: this is the one rule that refuses texts that fit.
    """
    wanted: Schema = schema["contains"]
    low, high = int(schema.get("minContains", 1)), schema.get("maxContains")
    if wanted is True or wanted == {}:
        return [{"minItems": low}, *([] if high is None else [{"maxItems": int(high)}])]
    if low == 0 and high is None:
        return []
    if high is not None and high < low:
        return [NO_ARRAY]
    n = min(MAX_POSITIONS, int(schema.get("maxItems", MAX_POSITIONS)))
    if high is None:
        return [either([NO_ARRAY, *_at_least(wanted, low, n, place)])]
    other = negation.negate(wanted, place)
    return [either([NO_ARRAY, *_counted(wanted, other, low, int(high), n, place)])]


def _at_least(wanted: Schema, low: int, n: int, place: str) -> Iterator[Schema]:
    if comb(n, low) > MAX_BRANCHES:
        n = next((m for m in range(n, low, -1) if comb(m, low) <= MAX_BRANCHES), low)
    for chosen in combinations(range(n), low):
        prefix = [wanted if index in chosen else True for index in range(chosen[-1] + 1)]
        yield {"type": "array", "prefixItems": prefix, "minItems": len(prefix)}


def _counted(wanted: Schema, other: Schema, low: int, high: int, n: int, place: str) -> Iterator[Schema]:
    while n > high and sum(comb(n, k) for k in range(low, high + 1)) > MAX_BRANCHES:
        n -= 1
    if sum(comb(n, k) for k in range(low, min(high, n) + 1)) > MAX_BRANCHES:
        raise NotExpressible(place, f"this would be more than {MAX_BRANCHES} cases; lower maxContains")
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
    values = _values(dereferenced(root, items, place))
    if values is None:
        return None
    low, high = int(schema.get("minItems", 0)), len(values) if most is None else min(most, len(values))
    if low > len(values):
        raise NotExpressible(place, f"minItems is {low}, and there are {len(values)} values that differ")
    n_branches = sum(_n_orders(len(values), k) for k in range(low, high + 1))
    if n_branches > MAX_BRANCHES:
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
    values = values_of(schema)
    if values is None and isinstance(schema, dict):
        kinds: dict[str, list[Any]] = {"boolean": [True, False], "null": [None]}
        values = kinds.get(str(schema.get("type")))
    if values is None or any(type_of(value) in ("array", "object") for value in values):
        return None
    different: list[Any] = []
    for value in values:
        if not any(same(value, other) for other in different):
            different.append(value)
    return different


def _n_orders(n: int, k: int) -> int:
    count = 1
    for factor in range(n - k + 1, n + 1):
        count *= factor
    return count
