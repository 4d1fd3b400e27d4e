"""The operators, methods and functions that a chat template may use, each within the budget.

`METHODS` and `GLOBALS`, with `FILTERS` and `TESTS` in `stretto.text.sandbox`, are lists of what is allowed.
A name that stands in none of them does not exist for a template.
"""

from __future__ import annotations

import operator
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

from jinja2.exceptions import SecurityError
from jinja2.runtime import Undefined
from jinja2.utils import Namespace

from stretto.errors import param_error

# The budget of one rendering of a template: steps, seconds, memory; and containers that know their size.
#
# Every container of a template knows the size of the whole tree below it. So printing, comparing, hashing
# and serialising are bounded before they start, also when one list holds another a thousand times over.

MAX_SECONDS = 2.0
MAX_STEPS = 1_000_000
MAX_TEXT = 1_000_000  # characters (and as many items) in any one value, and in the output
MAX_DEPTH = 100  # of nested containers and of nested macro calls; deeper ones would strain Python's own stack
TURNOVER = 32  # all values together may take this many times MAX_TEXT


class Size(NamedTuple):
    """The size of a value: characters in all its strings, all its items, and the depth of nesting."""

    characters: int
    items: int
    depth: int


class List(list[Any]):
    """A list that knows the size of the tree below it.

    Only `Budget.append` and `Budget.pop` change it, and only while no other container holds it: the sizes of
    those that do would be wrong.
    """

    __slots__ = ("is_held", "size")
    size: Size
    is_held: bool


class Dict(dict[Any, Any]):
    """A dict that knows the size of the tree below it; never changed once made."""

    __slots__ = ("size",)
    size: Size


class Tuple(tuple[Any, ...]):
    """A tuple that knows the size of the tree below it."""

    size: Size


def measure(value: object, depth: int = 0) -> Size:
    """Return the size of plain data; raises for anything else."""
    if isinstance(value, str):
        return Size(len(value), 1, 0)
    if isinstance(value, (List, Dict, Tuple)):
        return value.size
    if value is None or isinstance(value, (bool, int, float, Undefined)):
        return Size(1, 1, 0)
    if depth > MAX_DEPTH:
        raise SecurityError(f"data nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, (list, tuple)):
        return _sum(value, depth)
    if isinstance(value, dict):
        keys, values = _sum(value.keys(), depth), _sum(value.values(), depth)
        return Size(
            keys.characters + values.characters, keys.items + values.items, max(keys.depth, values.depth)
        )
    raise SecurityError(f"a {type(value).__name__} used as data")


def _sum(values: Iterable[object], depth: int) -> Size:
    characters, items, deepest = 0, 1, 0
    for value in values:
        if isinstance(value, List):
            value.is_held = True
        size = measure(value, depth + 1)
        characters += size[0]
        items += size[1]
        deepest = max(deepest, size[2])
    return Size(characters, items, deepest + 1)


class Budget:
    """The rest of a rendering's budget. `extra` is the size of the caller's data, which widens the limits.

    `spell` gives the text of a placeholder character in a template's own strings.
    """

    __slots__ = ("calls", "deadline", "room", "spell", "steps", "text")

    def __init__(
        self, extra: int = 0, *, spell: Callable[[str], str] = str, seconds: float = MAX_SECONDS
    ) -> None:
        self.steps = MAX_STEPS + 20 * extra
        self.text = MAX_TEXT + 8 * extra
        self.room = TURNOVER * self.text
        self.deadline = time.monotonic() + seconds
        self.calls = 0
        self.spell = spell

    def tick(self) -> None:
        """Count one step."""
        self.steps -= 1
        if self.steps < 0:
            raise SecurityError("more steps than a chat template needs")
        if time.monotonic() > self.deadline:
            raise SecurityError("more time than a chat template needs")

    def expect(self, length: int) -> None:
        """Refuse a value of this many characters or items before it is made."""
        if length > self.text:
            raise SecurityError(f"a value of {length} characters or items, over the limit of {self.text}")

    def keep(self, value: Any) -> Any:
        """Count a new value against the limits; containers are returned as the kind that knows its size."""
        if isinstance(value, str):
            self.expect(len(value))
            self.room -= len(value)
        elif isinstance(value, (list, tuple, dict)):
            size = value.size if isinstance(value, (List, Tuple, Dict)) else measure(value)
            self.expect(size.characters)
            self.expect(size.items)
            if size.depth > MAX_DEPTH:
                raise SecurityError(f"data nested deeper than {MAX_DEPTH} levels")
            self.room -= len(value) + 8
            value = pack_sized(value, size)
        if self.room < 0:
            raise SecurityError("more memory than a chat template needs")
        return value

    def append(self, values: list[Any], value: Any) -> None:
        """Append to a list; within the limits, and never a list to itself."""
        size = _sum((value,), 0)  # the value is held from now on
        own = _changeable(values)
        whole = Size(
            own.size[0] + size.characters, own.size[1] + size.items - 1, max(own.size[2], size.depth)
        )
        self.expect(max(whole.characters, whole.items))
        if whole.depth > MAX_DEPTH:
            raise SecurityError(f"data nested deeper than {MAX_DEPTH} levels")
        self.room -= 8
        own.append(value)
        own.size = whole

    def pop(self, values: list[Any], index: int = -1) -> Any:
        """Take an item out of a list."""
        own = _changeable(values)
        value = own.pop(index)
        size = measure(value)
        own.size = Size(own.size[0] - size.characters, own.size[1] - size.items, own.size[2])
        return value

    def each(self, values: Iterable[Any]) -> Iterator[Any]:
        """Iterate, counting every item."""
        for value in values:
            self.tick()
            yield value


def _changeable(values: list[Any]) -> List:
    if not isinstance(values, List) or values.is_held:
        raise SecurityError("a change of a list that is part of other data; make a list in the template")
    return values


def pack_sized(value: Any, size: Size) -> Any:
    """Return a container as the kind that knows its size."""
    if isinstance(value, (List, Tuple, Dict)):
        return value
    kind = Dict if isinstance(value, dict) else Tuple if isinstance(value, tuple) else List
    new = kind(value)
    new.size = size
    if isinstance(new, List):
        new.is_held = False
    return new


# The rendering in progress. A context variable: threads and tasks that render at once do not share it.
current: ContextVar[Budget] = ContextVar("stretto_template_budget")


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


def to_text(value: object) -> str:
    """Return a value as text; only plain data can be printed."""
    if type(value) is str:
        return value
    if not isinstance(value, Undefined):
        size = measure(value)
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
    sizes = [measure(left), measure(right)]
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
    return join_all("", [to_text(first), *map(to_text, rest)])


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
            pieces.append(to_text(args[int(match[1] or automatic)]))
            automatic += 1
        else:
            pieces.append(to_text(named[match[1]]))
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
        pieces += [pattern[last : match.start()], to_text(int(value) if match[1] == "d" else value)]
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
    reason = current.get().spell(to_text(message))[:500]
    raise param_error("messages", f"the model's chat template does not take them: {reason}")


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
