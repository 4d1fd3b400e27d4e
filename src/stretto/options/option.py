"""`Option`: one thing that a caller can set; checks, keywords, flags, fields and documents come from it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, fields, replace
from functools import cached_property
from math import inf, isfinite
from numbers import Integral, Rational, Real
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from stretto.errors import InvalidRequest


@dataclass(frozen=True)
class Option:
    """One thing that a caller can set: its name, type, default, meaning, range, and where it applies.

    - `type`: a real type, or an annotation as text where its names are of modules above this one
    - `low`, `high`: the range of numbers, without `low` itself if it is `above`; others are at least `least`,
      because smaller ones cannot be computed with
    - `unit`: "seconds", or "bytes", for which the command line takes 8GB; also the placeholder of a text
    - `aka`: names in other libraries; errors about them say ours
    - `more`: what documents say behind the meaning; `words`: the type as they have it, if not as Python does
    - `at`: calls of Python that take it, "default" for `stretto serve --default`, and "request" where a
      field of that name is passed on as it is
    - `commands`: those that take it, by `flag`, if that is not made from its name, on the `panel` of --help
    - `recommended`: a model's own default comes before this one
    - `test`, `takes`: what a value has to be, where type and range do not say it, and that in words
    """

    name: str
    type: Any
    default: Any
    meaning: str
    low: float | None = None
    high: float = inf
    above: bool = False
    least: float = -inf
    unit: str = ""
    aka: tuple[str, ...] = ()
    more: str = ""
    words: str = ""
    at: str = ""
    commands: str = ""
    flag: str = ""
    panel: str = ""
    recommended: bool = False
    test: Callable[[Any], bool] | None = None
    takes: str = ""

    def check(self, value: Any, named: str = "") -> None:
        """Raise `InvalidRequest` unless the option takes `value`; the message calls it `named`.

        >>> Option("top_k", int, 40, "", low=0, high=(1 << 31) - 1).check(40)
        """
        name, kinds = named or self.name, self.kinds
        if value is None and NoneType in kinds:
            return
        if self.test is not None:
            if not self.test(value):
                self._refuse(name, value, self.takes)
        elif (bool in kinds and isinstance(value, bool)) or (
            isinstance(value, str) and value in self.choices
        ):
            return
        elif bool in kinds or (self.choices and (self.low is None or isinstance(value, str))):
            self._refuse(name, value, self._taken)
        elif self.low is not None and int in kinds:
            check_integer(name, value, int(self.low), int(self.high), param=self.name)
        elif self.low is not None:
            check_number(name, value, self.low, self.high, open_low=self.above, param=self.name)
            if self.low < value < self.least:
                self._refuse(name, value, f"{self.low:g} or at least {self.least:g}")

    def read(self, text: str) -> Any:
        """The value that a text is; raises ValueError for one that is no number where one is wanted.

        >>> Option("top_p", float, 0.95, "").read("0.5")
        0.5
        """
        return next((kind(text) for kind in (int, float) if kind in self.kinds), text)

    def _refuse(self, name: str, value: Any, taken: str) -> None:
        remedy = value_remedy(self.name, value)
        message = f"{name} must be {taken}, not {value!r:.100}{remedy}"
        raise InvalidRequest(message, param=self.name, value=value)

    @cached_property
    def kinds(self) -> tuple[Any, ...]:
        """The types of a union, or the only type; none where it is a text."""
        if isinstance(self.type, str):
            return ()
        return get_args(self.type) if get_origin(self.type) in (Union, UnionType) else (self.type,)

    @cached_property
    def choices(self) -> tuple[str, ...]:
        """The texts of its type, if there are some."""
        return tuple(text for kind in self.kinds if get_origin(kind) is Literal for text in get_args(kind))

    @property
    def _taken(self) -> str:
        """The values of an option that takes certain ones only, in words."""
        values: list[str] = []
        for kind in self.kinds:
            values += ["True", "False"] if kind is bool else map(repr, get_args(kind))
            values += [f"an integer from {self.low:g} to {self.high:.0f}"] if kind is int else []
        return f"{', '.join(values[:-1])} or {values[-1]}"

    @property
    def is_single(self) -> bool:
        """Whether every value is a number, a switch or one of some texts, so that a list is a mistake."""
        return bool(self.choices) or not {bool, int, float}.isdisjoint(self.kinds)

    @property
    def shown_type(self) -> str:
        """The type, as documents have it."""
        text = self.words or self.annotation
        return re.sub(r"Literal\[(.*?)\]", lambda found: found[1].replace(", ", " | "), text)

    @property
    def annotation(self) -> str:
        """The type, as Python has it.

        >>> Option("cells", int | Literal["auto"], 8192, "").annotation
        'int | Literal["auto"]'
        """
        if isinstance(self.type, str):
            return self.type
        return " | ".join(map(_annotation, self.kinds))

    @property
    def text(self) -> str:
        """The meaning, and what documents say behind it."""
        return f"{self.meaning} {self.more}".rstrip()

    @property
    def heading(self) -> str:
        """Name, type and default, as in a signature.

        >>> Option("top_k", int, 40, "Sample among the k most probable tokens only.").heading
        'top_k: int = 40'
        """
        return f"{self.name}: {self.shown_type} = {self.default!r}"


def _annotation(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return f"Literal[{', '.join(map(json.dumps, get_args(kind)))}]"
    return "None" if kind is NoneType else str(kind) if get_args(kind) else kind.__name__


Table = tuple[Option, ...]


def table(*options: Option, **shared: Any) -> Table:
    """Options of one kind; what they `share` holds for each that does not say it otherwise."""
    usual = {field.name: field.default for field in fields(Option)}
    return tuple(
        replace(one, **{name: value for name, value in shared.items() if getattr(one, name) == usual[name]})
        for one in options
    )


def taken_by(table: Table, call: str) -> Table:
    """The options of a table that a call takes."""
    return tuple(option for option in table if call in option.at.split())


def without(table: Table, *names: str) -> Table:
    """A table less some of its options."""
    return tuple(option for option in table if option.name not in names)


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


# Values that mean "the default" or "no limit" in other libraries, and what to write here: the end of errors
# about values of `generate` and `load`, and of the server's fields.

_TO_THE_END = "to generate to the end of the context"

ADVICE = {
    ("max_tokens", -1): f"leave max_tokens out {_TO_THE_END}",
    ("seed", -1): "leave seed out for a fresh one",
    ("top_k", -1): "top_k=0 samples among all tokens",
}
FIELDS = {  # of requests; the second is a field that the advice needs
    "max_tokens": (f'send "n_predict": -1 {_TO_THE_END}', "n_predict"),
    "max_completion_tokens": (f'send "n_predict": -1 {_TO_THE_END}', "n_predict"),
    "max_output_tokens": (f"leave it out {_TO_THE_END}", "max_output_tokens"),
}


def value_remedy(name: str, value: object) -> str:
    """The end of an error about a parameter's value: what to write instead, or "".

    >>> value_remedy("top_k", -1)
    '; top_k=0 samples among all tokens'
    """
    if value is None and name.isidentifier():
        return f"; leave {name} out for the default"
    advice = ADVICE.get((name, value)) if isinstance(value, int) else None
    return f"; {advice}" if advice else ""


def field_remedy(name: str, value: object, known: Collection[str]) -> str:
    """The end of an error about a field's value, for a request that has the fields `known`."""
    advice, needed = FIELDS.get(name, ("", ""))
    return f"; {advice}" if value == -1 and needed in known and advice else ""
