"""`TaskModel`: the base of models that do not generate text.

A subclass sets `verbs`, implements each of them, and releases what it holds in `close`. A verb takes one
input and returns one result, or a list of inputs and returns a list of results, in order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from stretto.loading.verbs import Verbs

R = TypeVar("R")


@dataclass(frozen=True)
class Source:
    """What a model is opened from: its files by their names."""

    name: str
    license: str
    files: Mapping[str, Path]


class TaskModel(Verbs):
    """A model by its name and licence, with the verbs that it has. Close it, or use it in a `with`."""

    takes: str = "image"  # what its verbs are about: "image", "text", "bytes" or "audio"

    def __init__(self, source: Source) -> None:
        self.name = source.name
        self.license = source.license

    def __repr__(self) -> str:
        return f"<{self.name}: {', '.join(self.verbs)} ({self.license})>"


def each(inputs: Any, one: Callable[[Any], R]) -> R | list[R]:
    """The result of one input, or the results of a list of them.

    >>> each(["a", "b"], str.upper)
    ['A', 'B']
    """
    return [one(value) for value in inputs] if isinstance(inputs, (list, tuple)) else one(inputs)
