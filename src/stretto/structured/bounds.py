"""Bounds of numbers that llguidance does not keep.

Between a whole number that is excluded and a fraction less than one above it, as 0 < x ≤ 0.5, it accepts the
whole number (below zero the other way round). Such a range is refused.
"""

from __future__ import annotations

import re
from math import ceil, floor
from typing import Any

from stretto.structured.overlap import Overlap
from stretto.structured.places import NotExpressible

MAY_BE_WRONG = re.compile(r'"exclusiveM(?:in|ax)imum": ')
BOUNDS = "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"


def wrong_bound(overlap: Overlap, schema: dict[str, Any]) -> str | None:
    """The bound of a schema's numbers that would be accepted although it is excluded, in words; else None."""
    try:
        members = overlap.members([schema]) or []
    except TypeError:  # a keyword of the wrong kind, which the parser refuses
        return None
    except NotExpressible:
        members = [one for one in (schema, *schema.get("allOf", [])) if isinstance(one, dict)]
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


def _types(schema: dict[str, Any]) -> list[str]:
    types = schema.get("type", [])
    return types if isinstance(types, list) else [types]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
