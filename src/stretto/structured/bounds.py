"""Bounds of numbers that llguidance does not keep.

Between a whole number that is excluded and a fraction less than one above it, as 0 < x ≤ 0.5, it accepts the
whole number (below zero the other way round). Such a range is refused.
"""

from __future__ import annotations

import re
from math import ceil, floor
from typing import Any

from stretto.structured.places import NotExpressible, Schema, dereferenced

MAX_MEMBERS = 64  # schemas that apply to a value at once, which are looked at
MAY_BE_WRONG = re.compile(r'"exclusiveM(?:in|ax)imum": ')
BOUNDS = "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"


def wrong_bound(root: Schema, schema: dict[str, Any]) -> str | None:
    """The bound of a schema's numbers that would be accepted although it is excluded, in words; else None."""
    members = _members(root, schema)
    if all("type" in one and "number" not in _types(one) for one in members if one.keys() & set(BOUNDS)):
        return None
    given = {key: [one[key] for one in members if _is_number(one.get(key))] for key in BOUNDS}
    lows = given["minimum"] + given["exclusiveMinimum"]
    highs = given["maximum"] + given["exclusiveMaximum"]
    for least in given["exclusiveMinimum"]:
        if least >= 0 and least == floor(least) and any(floor(one) == least < one for one in highs):
            return f"exclusiveMinimum {least}"
    for most in given["exclusiveMaximum"]:
        if most < 0 and most == ceil(most) and any(ceil(one) == most > one for one in lows):
            return f"exclusiveMaximum {most}"
    return None


def _members(root: Schema, schema: Schema) -> list[dict[str, Any]]:
    """A schema and those that apply with it."""
    found: list[dict[str, Any]] = []
    waiting = [schema]
    while waiting and len(found) < MAX_MEMBERS:
        try:
            one = dereferenced(root, waiting.pop())
        except NotExpressible:
            continue
        if isinstance(one, dict):
            found.append(one)
            waiting += one.get("allOf", [])
    return found


def _types(schema: dict[str, Any]) -> list[str]:
    types = schema.get("type", [])
    return [types] if isinstance(types, str) else types


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
