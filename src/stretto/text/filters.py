"""The filters and tests a chat template may use, each within the budget.

Some are Jinja's own, fed with counted items: they reach attributes and other filters through the sandbox.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import partial, reduce
from typing import Any

from jinja2.exceptions import SecurityError
from jinja2.filters import FILTERS as JINJA_FILTERS
from jinja2.runtime import Context, Macro, Undefined
from jinja2.tests import TESTS as JINJA_TESTS
from jinja2.utils import pass_context

from stretto.text.budget import current, size_of
from stretto.text.guards import (
    NUMBERS,
    Function,
    binary,
    compare,
    concat,
    cut,
    each,
    join_all,
    pack,
    percent,
    replace,
    strip,
    text_of,
    word,
)

MAX_FLOAT_CHARACTERS = 800
_WORD = re.compile(r"\w+")
_INDENT = 32  # columns; wider ones would multiply the size of a text


def _kept(run: Callable[..., Any]) -> Callable[..., Any]:
    """Count a filter's call and its result; lazy results are computed at once."""

    def guarded(*args: Any, **options: Any) -> Any:
        budget = current.get()
        budget.tick()
        result = run(*args, **options)
        if isinstance(result, Iterator):
            result = list(budget.each(result))
        return budget.keep(result)

    return guarded


def _of_context(name: str) -> Callable[..., Any]:
    """Jinja's own filter, over items that are counted; it reaches items and other filters by our rules."""
    run = _kept(JINJA_FILTERS[name])

    @pass_context
    def guarded(context: Context, values: Any, *args: Any, **options: Any) -> Any:
        # As in Jinja, nothing (none, an empty text) has no items here.
        return run(context, each(values) if values else values, *args, **options)

    return guarded


def _of_environment(name: str) -> Callable[..., Any]:
    run = _kept(JINJA_FILTERS[name])

    @pass_context
    def guarded(context: Context, values: Any, *args: Any, **options: Any) -> Any:
        return run(context.environment, each(values), *args, **options)

    return guarded


@pass_context
def _join_filter(context: Context, values: Any, d: str = "", attribute: str | int | None = None) -> str:
    if attribute is not None:
        values = JINJA_FILTERS["map"](context, values, attribute=attribute)
    return join_all(text_of(d), [text_of(value) for value in each(values)])


def _default(value: Any, default_value: Any = "", boolean: bool = False) -> Any:
    return default_value if isinstance(value, Undefined) or (boolean and not value) else value


def _length(value: Any) -> int:
    return len(current.get().spell(value)) if isinstance(value, str) else len(value)


def _indent(value: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    text = text_of(value)
    columns = width if isinstance(width, int) else len(width)
    _check_indent(columns)
    current.get().expect(len(text) + columns * (text.count("\n") + 1))
    return str(JINJA_FILTERS["indent"](text, width, first, blank))


def _check_indent(columns: int) -> None:
    if columns > _INDENT:
        raise SecurityError(f"an indentation of more than {_INDENT} columns")


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Serialise as the reference renderer does: no HTML escapes, non-ASCII letters as they are."""
    size = size_of(value)
    columns = indent if isinstance(indent, int) else len(indent or "")
    _check_indent(columns)
    room = columns * size.depth + sum(map(len, separators or ()))
    current.get().expect(size.characters + size.items * room)
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _items(value: Any) -> list[Any]:
    if isinstance(value, Undefined):
        return []
    if not isinstance(value, dict):
        raise TypeError("Can only get item pairs from a mapping.")
    return list(value.items())


def _reverse(value: Any) -> Any:
    return value[::-1] if isinstance(value, str) else list(each(value))[::-1]


def _first(value: Any) -> Any:
    return next(each(value), Undefined("No first item, sequence was empty."))


def _last(value: Any) -> Any:
    return _first(_reverse(value))


def _int(value: Any, default: int = 0, base: int = 10) -> Any:
    if isinstance(value, str) and len(value) > 80:
        return default
    return word(JINJA_FILTERS["int"](value, default, base))


def _float(value: Any, default: float = 0.0) -> Any:
    if isinstance(value, str) and len(value) > MAX_FLOAT_CHARACTERS:  # the exact value of more takes long
        return default
    return JINJA_FILTERS["float"](value, default)


def _sum(values: Any, start: Any = 0) -> Any:
    return reduce(partial(binary, "+"), each(values), start)


def _round(value: Any, precision: int = 0, method: str = "common") -> Any:
    if abs(precision) > 20:
        raise SecurityError("rounding to more than 20 places")
    return JINJA_FILTERS["round"](value, precision, method)


def _truncate(
    value: Any, length: int = 255, killwords: bool = False, end: str = "...", leeway: int | None = None
) -> str:
    """A text cut to a length, as Jinja does: a few characters more are let through, and words stay whole."""
    text, end = text_of(value), text_of(end)
    if length < len(end) or (leeway or 0) < 0:
        raise ValueError(f"truncate to {length} characters, of which {len(end)} are the end")
    if len(text) <= length + (5 if leeway is None else leeway):
        return text
    text = text[: length - len(end)]
    return (text if killwords else text.rsplit(" ", 1)[0]) + end


FILTERS: dict[str, Callable[..., Any]] = {
    **{
        name: _kept(run)
        for name, run in {
            "abs": abs,
            "capitalize": lambda value: text_of(value).capitalize(),
            "count": _length,
            "d": _default,
            "default": _default,
            "first": _first,
            "float": _float,
            "format": lambda value, *values: percent(text_of(value), *values),
            "indent": _indent,
            "int": _int,
            "items": _items,
            "last": _last,
            "length": _length,
            "list": lambda value: list(each(value)),
            "lower": lambda value: text_of(value).lower(),
            "replace": lambda value, old, new, count=-1: replace(
                text_of(value), text_of(old), text_of(new), count
            ),
            "reverse": _reverse,
            "round": _round,
            "safe": text_of,  # nothing is escaped here, so everything is safe
            "string": text_of,
            "sum": _sum,
            "title": lambda value: JINJA_FILTERS["title"](text_of(value)),
            "tojson": to_json,
            "truncate": _truncate,
            "wordcount": lambda value: sum(1 for _ in _WORD.finditer(text_of(value))),
            "trim": lambda value, chars=None: strip(text_of(value), chars),
            "upper": lambda value: text_of(value).upper(),
            "dictsort": JINJA_FILTERS["dictsort"],
        }.items()
    },
    **{name: _of_context(name) for name in ("map", "select", "selectattr", "reject", "rejectattr")},
    **{name: _of_environment(name) for name in ("sort", "unique", "min", "max")},
    "join": _join_filter,
    # Syntax is compiled to these; a template cannot spell their names.
    "~each": each,
    "~pack": pack,
    "~compare": compare,
    "~concat": concat,
    "~cut": cut,
}


# Tests


def _jinja_test(name: str) -> Callable[..., Any]:
    test: Any = JINJA_TESTS[name]
    return partial(test)


def _whole(run: Callable[..., Any]) -> Callable[..., Any]:
    """Take numbers only: Jinja's own tests use `%`, which on a string would be formatting."""

    def guarded(*values: Any) -> Any:
        if not all(isinstance(value, NUMBERS) for value in values):
            raise SecurityError("a test for numbers on something else")
        return run(*values)

    return guarded


_KINDS = """
    defined undefined none boolean true false integer float number string mapping iterable sequence sameas
"""
_NAMES = {"eq": "equalto ==", "ne": "!=", "lt": "lessthan <", "gt": "greaterthan >", "ge": ">=", "le": "<="}
_SYMBOLS = {"ge": "gteq", "le": "lteq"}
TESTS: dict[str, Callable[..., Any]] = {
    **{name: _jinja_test(name) for name in _KINDS.split()},
    **{name: _whole(_jinja_test(name)) for name in ("odd", "even", "divisibleby")},
    **{
        alias: partial(lambda symbol, left, right: compare(left, symbol, right), _SYMBOLS.get(name, name))
        for name, aliases in _NAMES.items()
        for alias in (name, *aliases.split())
    },
    "escaped": lambda value: False,  # nothing is escaped here
    "callable": lambda value: isinstance(value, (Function, Macro)),
    "filter": lambda name: name in FILTERS and not name.startswith("~"),
    "in": lambda left, right: compare(left, "in", right),
    "lower": lambda value: text_of(value).islower(),
    "test": lambda name: name in TESTS,
    "upper": lambda value: text_of(value).isupper(),
}
