"""Specs as text that fits a screen: without fields that have their defaults, and equal layers once."""

from __future__ import annotations

from collections import Counter
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any

MAX_KINDS = 2  # of parts that are written out
MAX_NUMBERS = 4  # of a tuple of numbers


def short_repr(part: Any) -> str:
    """A dataclass with the fields that differ from their defaults; for `__repr__` of specs.

    >>> short_repr(Norm("attn_norm", 1e-5))
    "Norm(name='attn_norm')"
    """
    shown = [f"{one.name}={_shown(getattr(part, one.name))}" for one in fields(part) if _differs(part, one)]
    return f"{type(part).__name__}({', '.join(shown)})"


def _differs(part: Any, one: Field[Any]) -> bool:
    return one.repr and (one.default is MISSING or getattr(part, one.name) != one.default)


def _shown(value: Any) -> str:
    if is_dataclass(value):
        return short_repr(value)
    if isinstance(value, float):
        return f"{value:.6g}"
    if not isinstance(value, tuple) or not value:
        return repr(value)
    return _shown_parts(value) if is_dataclass(value[0]) else _shown_values(value)


def _shown_values(values: tuple[Any, ...]) -> str:
    """The first of some values, and how many there are."""
    first = ", ".join(map(_shown, values[:MAX_NUMBERS]))
    return f"({first})" if len(values) <= MAX_NUMBERS else f"({first}, … {len(values)} in all)"


def _shown_parts(parts: tuple[Any, ...]) -> str:
    """Parts of the same kind once, each with its number."""
    kinds = Counter(map(short_repr, parts))
    several = [f"{count} × {text}" for text, count in kinds.most_common(MAX_KINDS)]
    rest = len(parts) - sum(count for _, count in kinds.most_common(MAX_KINDS))
    return f"[{', '.join(several)}{f', {rest} of {len(kinds) - MAX_KINDS} other kinds' if rest else ''}]"
