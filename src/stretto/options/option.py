"""`Option`: one keyword argument, as documentation tells it, and the bounds of its values."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite
from numbers import Integral, Rational, Real
from typing import Any

from stretto.errors import InvalidRequest
from stretto.options.other_values import value_remedy


@dataclass(frozen=True)
class Bounds:
    """The numbers that an option takes: from `low` (not `low` itself, if `is_open`) to `high`.

    Numbers other than `low` are at least `least`; smaller ones cannot be computed with.
    """

    low: float
    high: float
    is_open: bool = False
    least: float = -inf


@dataclass(frozen=True)
class Option:
    """A keyword argument: its name, type in words of Python, default and meaning."""

    name: str
    type: str
    default: Any
    meaning: str
    bounds: Bounds | None = None

    def check(self, value: Any) -> None:
        """Raise `InvalidRequest` unless `value` is a number within the bounds.

        >>> Option("top_k", "int", 40, "", Bounds(0, 1 << 31)).check(40)
        """
        if self.bounds is None:
            return
        low, high, least = self.bounds.low, self.bounds.high, self.bounds.least
        if self.type.startswith("int"):
            check_integer(self.name, value, int(low), int(high))
            return
        check_number(self.name, value, low, high, open_low=self.bounds.is_open)
        if low < value < least:
            raise InvalidRequest(
                f"{self.name} must be {low:g} or at least {least:g}, not {value!r}",
                param=self.name,
                value=value,
            )

    @property
    def heading(self) -> str:
        """Name, type and default, as in a signature.

        >>> Option("top_k", "int", 40, "Sample among the k most probable tokens only.").heading
        'top_k: int = 40'
        """
        return f"{self.name}: {self.type} = {self.default!r}"


Table = tuple[Option, ...]


def without(table: Table, *names: str) -> Table:
    """A table less some of its options."""
    return tuple(option for option in table if option.name not in names)


def only(table: Table, *names: str) -> Table:
    """Some options of a table, in the order of the table."""
    return tuple(option for option in table if option.name in names)


def check_number(
    name: str, value: float, low: float, high: float, *, open_low: bool = False, param: str | None = None
) -> None:
    """Raise `InvalidRequest` unless `value` is a finite number in [low, high], or (low, high]."""
    # NumPy's numbers are of these kinds too; a Fraction is none that logits can be divided by.
    is_number = isinstance(value, Integral) or (isinstance(value, Real) and not isinstance(value, Rational))
    fine = is_number and not isinstance(value, bool)
    if not fine or not isfinite(value) or not low <= value <= high or (open_low and value == low):
        above = f"above {low:g}" if open_low else f"from {low:g}"
        raise InvalidRequest(
            f"{name} must be a number {above} to {high:g}, not {value!r}{value_remedy(name, value)}",
            param=param or name,
            value=value,
        )


def check_integer(name: str, value: int, low: int, high: int, *, param: str | None = None) -> None:
    """Raise `InvalidRequest` unless `value` is an integer in [low, high].

    `name` is how the message calls it; `param` the parameter it belongs to, if that is another one.
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or not low <= value <= high:
        raise InvalidRequest(
            f"{name} must be an integer from {low} to {high}, not {value!r}{value_remedy(name, value)}",
            param=param or name,
            value=value,
        )
