"""`Option`: one keyword argument, as documentation tells it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Option:
    """A keyword argument: its name, type in words of Python, default and meaning."""

    name: str
    type: str
    default: Any
    meaning: str

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
