"""The tables of options as docstrings and signatures."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from inspect import Parameter
from textwrap import fill, indent
from typing import Any, TypeVar

from stretto.options.generating import OPTIONS
from stretto.options.option import Option, Table

Function = TypeVar("Function", bound=Callable[..., Any])

WIDTH = 96  # of a docstring's lines


def document_options(table: Table, title: str = "Options") -> Callable[[Function], Function]:
    """A decorator: adds a table of options to a docstring, and to the signature that `help` shows."""

    def add(function: Function) -> Function:
        function.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\n{write_docstring(table, title)}"
        function.__signature__ = _signature(function, table)  # type: ignore[attr-defined]
        return function

    return add


def write_docstring(table: Table, title: str = "Options") -> str:
    """The section of a docstring that lists options."""
    return "\n".join([f"{title}:", *map(_described, table)])


@cache  # several functions share their options
def _described(option: Option) -> str:
    meaning = indent(fill(option.text, WIDTH - 4, break_on_hyphens=False), " " * 4)
    return indent(f"{option.heading}\n{meaning}", " " * 4)


def _signature(function: Callable[..., Any], table: Table) -> inspect.Signature:
    """The signature with all options by name, in place of `**keywords`."""
    signature = inspect.signature(function)
    known = [one for one in signature.parameters.values() if one.kind is not Parameter.VAR_KEYWORD]
    named = {one.name for one in known}
    options = [
        Parameter(option.name, Parameter.KEYWORD_ONLY, default=option.default)
        for option in table
        if option.name not in named
    ]
    return signature.replace(parameters=[*known, *options])


MEANINGS = {option.name: option.text for option in OPTIONS}
"""The meaning of each option of `generate` and `chat`, by name."""
