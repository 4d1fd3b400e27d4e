"""The operators, methods and functions that a chat template may use, each within the budget.

`METHODS` and `GLOBALS`, with `FILTERS` and `TESTS` in `stretto.text.filters`, are lists of what is allowed.
A name that stands in none of them does not exist for a template.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from functools import partial
from typing import Any

from jinja2.exceptions import SecurityError
from jinja2.runtime import Undefined
from jinja2.utils import Namespace

from stretto.errors import InvalidRequest
from stretto.text.budget import current, size_of

NUMBERS = (bool, int, float)
_RANGE = 100_000
_WORD_MAX = 2**64
FEW_CHARACTERS = 16  # of a needle, for which the plain way is the faster one


class Function:
    """A function that a template may call. Nothing else is callable, and it cannot be inspected."""

    __slots__ = ("name", "run")

    def __init__(self, name: str, run: Callable[..., Any]) -> None:
        self.name = name
        self.run = run


def text_of(value: object) -> str:
    """Return a value as text; only plain data can be printed."""
    if type(value) is str:
        return value
    if not isinstance(value, Undefined):
        size = size_of(value)
        current.get().expect(size.characters + size.items)
    return str(current.get().keep(str(value)))


def each(values: Iterable[Any]) -> Iterator[Any]:
    """Iterate over the items of a template's loop, counting each."""
    return current.get().each(values)


def pack(value: Any) -> Any:
    """Count a list, tuple or dict literal of the template."""
    current.get().tick()
    return current.get().keep(value)


# Operators


def binary(symbol: str, left: Any, right: Any) -> Any:
    """Apply one of `+ - * / // % **`; the size of the result is checked first."""
    budget = current.get()
    budget.tick()
    if symbol == "+" and type(left) is str and type(right) is str:  # the usual case
        budget.expect(len(left) + len(right))
        return budget.keep(left + right)
    if isinstance(left, NUMBERS) and isinstance(right, NUMBERS):
        if symbol == "**" and (abs(right) > 64 or abs(left) > _WORD_MAX):
            raise SecurityError("a power too large")
        return word(_OPERATORS[symbol](left, right))
    if isinstance(left, Undefined) or isinstance(right, Undefined):
        return _OPERATORS[symbol](left, right)  # says what is undefined
    if symbol == "%" and isinstance(left, str):
        return percent(left, *(right if isinstance(right, tuple) else (right,)))
    if symbol == "*" and isinstance(left, int):
        left, right = right, left
    sizes = [size_of(left), size_of(right)]
    if symbol == "*" and isinstance(right, int):
        budget.expect(max(sizes[0].characters, sizes[0].items) * max(right, 0))
    else:
        budget.expect(max(sum(s.characters for s in sizes), sum(s.items for s in sizes)))
    return budget.keep(_OPERATORS[symbol](left, right))


_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
}


def word(value: Any) -> Any:
    """Refuse a number of more than 64 bits."""
    if isinstance(value, int) and abs(value) > _WORD_MAX:
        raise SecurityError("a number of more than 64 bits")
    return value


def compare(left: Any, symbol: str, right: Any) -> bool:
    """Compare two values; a placeholder counts as the text of its token."""
    budget = current.get()
    budget.tick()
    if isinstance(left, str) and isinstance(right, str):
        if symbol in ("in", "notin"):
            left = _needle(left, right)
        elif not (left.isascii() and right.isascii()):
            left, right = budget.spell(left), budget.spell(right)
    return bool(_COMPARISONS[symbol](left, right))


_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "lteq": operator.le,
    "gt": operator.gt,
    "gteq": operator.ge,
    "in": lambda left, right: left in right,
    "notin": lambda left, right: left not in right,
}


def concat(first: Any, *rest: Any) -> str:
    """Join the operands of `~`."""
    current.get().tick()
    return join_all("", [text_of(first), *map(text_of, rest)])


def join_all(separator: str, pieces: list[str]) -> str:
    """Join; the length of the result is checked first."""
    budget = current.get()
    budget.expect(sum(map(len, pieces)) + len(separator) * len(pieces))
    return str(budget.keep(separator.join(pieces)))


def cut(value: Any, start: Any, stop: Any, step: Any) -> Any:
    """Take a slice."""
    current.get().tick()
    if isinstance(value, (str, list, tuple)):
        return current.get().keep(value[start:stop:step])
    if isinstance(value, Undefined):
        return value[start:stop:step]
    raise TypeError(f"a {type(value).__name__} cannot be sliced")


# Methods


def _needle(wanted: str, subject: str) -> str:
    """Return the text to search for: messages hold the text of a special token, never its placeholder."""
    return wanted if wanted.isascii() or wanted in subject else current.get().spell(wanted)


def _seeking(method: Callable[..., Any]) -> Callable[..., Any]:
    def run(subject: str, wanted: Any = None, *rest: Any, **options: Any) -> Any:
        if isinstance(wanted, str):
            wanted = _needle(wanted, subject)
        return method(subject, wanted, *rest, **options)

    return run


def _at_ends(name: str) -> Callable[..., Any]:
    """Methods that look at an end of a text: there alone the needle is looked for."""
    method = getattr(str, name)
    has = str.startswith if name in ("startswith", "removeprefix") else str.endswith

    def needle(wanted: Any, subject: str) -> Any:
        if not isinstance(wanted, str) or wanted.isascii() or has(subject, wanted):
            return wanted
        return current.get().spell(wanted)

    def run(subject: str, wanted: Any = None, *rest: Any, **options: Any) -> Any:
        if isinstance(wanted, tuple):
            wanted = tuple(needle(one, subject) for one in wanted)
        return method(subject, needle(wanted, subject), *rest, **options)

    return run


# Python searches backwards by comparing at each place, which takes quadratic time. Forwards it does not.


def _rfind(subject: str, wanted: str, start: int | None = None, end: int | None = None) -> int:
    if not isinstance(wanted, str) or len(wanted) <= FEW_CHARACTERS:
        return subject.rfind(wanted, start, end)
    first, last, _ = slice(start, end).indices(len(subject))
    at = subject[first:last][::-1].find(wanted[::-1])
    return -1 if at < 0 else last - at - len(wanted)


def _rindex(subject: str, wanted: str, start: int | None = None, end: int | None = None) -> int:
    if (at := _rfind(subject, wanted, start, end)) < 0:
        raise ValueError("substring not found")
    return at


def _rpartition(subject: str, wanted: str) -> tuple[str, str, str]:
    if not isinstance(wanted, str) or len(wanted) <= FEW_CHARACTERS:
        return subject.rpartition(wanted)
    at = _rfind(subject, wanted)
    return ("", "", subject) if at < 0 else (subject[:at], wanted, subject[at + len(wanted) :])


def _rsplit(subject: str, sep: str | None = None, maxsplit: int = -1) -> list[str]:
    if not isinstance(sep, str) or len(sep) <= FEW_CHARACTERS:
        return subject.rsplit(sep, maxsplit)
    return [part[::-1] for part in subject[::-1].split(sep[::-1], maxsplit)][::-1]


def strip(subject: str, chars: str | None = None, /, left: bool = True, right: bool = True) -> str:
    """`str.strip`, and with one side `lstrip` or `rstrip`, also of very many characters."""
    if not isinstance(chars, str) or len(chars) <= FEW_CHARACTERS:
        method = str.strip if left and right else str.lstrip if left else str.rstrip
        return method(subject, chars)
    unwanted, first, last = frozenset(chars), 0, len(subject)
    while left and first < last and subject[first] in unwanted:
        first += 1
    while right and last > first and subject[last - 1] in unwanted:
        last -= 1
    return subject[first:last]


def replace(subject: str, old: str, new: str, count: int = -1) -> str:
    """Replace; the length of the result is checked first."""
    old = _needle(old, subject)
    new = current.get().spell(new)  # a replacement in a message's text is text
    n = subject.count(old)
    n = n if count < 0 else min(n, count)
    current.get().expect(len(subject) + n * max(0, len(new) - len(old)))
    return subject.replace(old, new, count)


def _join(separator: str, values: Iterable[Any]) -> str:
    pieces = list(each(values))
    if not all(isinstance(piece, str) for piece in pieces):
        raise TypeError("join() takes strings only")
    return join_all(separator, pieces)


_FIELD = re.compile(r"\{\{|\}\}|\{(\w*)\}|[{}]")


def _format(pattern: str, *args: Any, **named: Any) -> str:
    """`str.format` with bare fields only: `{}`, `{0}`, `{name}`."""
    pieces, last, automatic = [], 0, 0
    for match in _FIELD.finditer(pattern):
        pieces.append(pattern[last : match.start()])
        last = match.end()
        if match[0] in ("{{", "}}"):
            pieces.append(match[0][0])
        elif match[1] is None:
            raise SecurityError("format() fields other than {}, {0} and {name}")
        elif match[1] == "" or match[1].isdecimal():
            pieces.append(text_of(args[int(match[1] or automatic)]))
            automatic += 1
        else:
            pieces.append(text_of(named[match[1]]))
    return join_all("", [*pieces, pattern[last:]])


_PERCENT = re.compile(r"%(.?)", re.DOTALL)


def percent(pattern: str, *values: Any) -> str:
    """`%` formatting with bare fields only: `%s`, `%d`, `%%`."""
    pieces, last, rest = [], 0, iter(values)
    for match in _PERCENT.finditer(pattern):
        if match[1] not in ("s", "d", "%"):
            raise SecurityError("'%' fields other than %s, %d and %%")
        value: Any = "%" if match[1] == "%" else next(rest, _NOTHING)
        if value is _NOTHING or (match[1] == "d" and not isinstance(value, NUMBERS)):
            raise TypeError(f"{match[0]} has no value that fits")
        pieces += [pattern[last : match.start()], text_of(int(value) if match[1] == "d" else value)]
        last = match.end()
    if next(rest, _NOTHING) is not _NOTHING:
        raise TypeError("not all arguments converted during string formatting")
    return join_all("", [*pieces, pattern[last:]])


_NOTHING = object()
_PLAIN = """
    upper lower title capitalize casefold swapcase splitlines isalpha isdigit isalnum
    isspace isupper islower isnumeric isdecimal isidentifier istitle isascii
"""
_BACKWARDS: dict[str, Callable[..., Any]] = {
    "rfind": _rfind,
    "rindex": _rindex,
    "rpartition": _rpartition,
    "rsplit": _rsplit,
}
METHODS: dict[type, dict[str, Callable[..., Any]]] = {
    str: {
        **{name: getattr(str, name) for name in _PLAIN.split()},
        "strip": lambda subject, chars=None, /: strip(subject, chars),
        "lstrip": lambda subject, chars=None, /: strip(subject, chars, right=False),
        "rstrip": lambda subject, chars=None, /: strip(subject, chars, left=False),
        **{name: _seeking(getattr(str, name)) for name in ("split", "partition", "find", "index", "count")},
        **{name: _seeking(run) for name, run in _BACKWARDS.items()},
        **{name: _at_ends(name) for name in ("startswith", "endswith", "removeprefix", "removesuffix")},
        "replace": replace,
        "join": _join,
        "format": _format,
    },
    dict: {
        "get": dict.get,
        "keys": lambda mapping: list(mapping),
        "values": lambda mapping: list(mapping.values()),
        "items": lambda mapping: list(mapping.items()),
    },
    list: {
        "index": list.index,
        "count": list.count,
        "append": lambda values, value: current.get().append(values, value),
        "pop": lambda values, index=-1: current.get().pop(values, index),
    },
    tuple: {"index": tuple.index, "count": tuple.count},
}


def bound(subject: object, kind: type, name: str) -> Function | None:
    """Return an allowed method of a value, or None."""
    run = METHODS.get(kind, {}).get(name)
    return None if run is None else Function(name, partial(run, subject))


# Functions


def _range(*args: int) -> range:
    values = range(*args)
    if len(values) > _RANGE:
        raise SecurityError(f"a range of more than {_RANGE} numbers")
    return values


def _namespace(*args: Any, **attributes: Any) -> Namespace:
    values = dict(*args, **attributes)
    if any(not isinstance(name, str) or name.startswith("_") for name in values):
        raise SecurityError("namespace attributes that start with an underscore")
    return Namespace(values)


def _raise_exception(message: Any = "") -> None:
    reason = current.get().spell(text_of(message))[:500]
    raise InvalidRequest(
        f"messages: the model's chat template does not take them: {reason}", param="messages"
    )


def _strftime_now(pattern: str) -> str:
    # Bare directives only: some C libraries take a width, and fill gigabytes with zeros.
    if len(pattern) > 100 or not re.fullmatch(r"(?:[^%\0]|%-?[A-Za-z%])*", pattern):
        raise SecurityError(f"the date format {pattern[:100]!r}")
    return datetime.now().strftime(pattern)


def _refused(name: str) -> Callable[..., Any]:
    def run(*args: Any, **options: Any) -> Any:
        raise SecurityError(f"{name}() is not for chat templates")

    return run


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "dict": dict,
    "namespace": _namespace,
    "raise_exception": _raise_exception,
    "range": _range,
    "strftime_now": _strftime_now,
    **{name: _refused(name) for name in ("cycler", "joiner", "lipsum")},
}
GLOBALS = {name: Function(name, run) for name, run in _FUNCTIONS.items()}
