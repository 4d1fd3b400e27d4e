"""The budget of one rendering of a template: steps, seconds, memory; and containers that know their size.

Every container of a template knows the size of the whole tree below it. So printing, comparing, hashing
and serialising are bounded before they start, also when one list holds another a thousand times over.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple

from jinja2.exceptions import SecurityError
from jinja2.runtime import Undefined

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


def size_of(value: object, depth: int = 0) -> Size:
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
        size = size_of(value, depth + 1)
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
            size = value.size if isinstance(value, (List, Tuple, Dict)) else size_of(value)
            self.expect(size.characters)
            self.expect(size.items)
            if size.depth > MAX_DEPTH:
                raise SecurityError(f"data nested deeper than {MAX_DEPTH} levels")
            self.room -= len(value) + 8
            value = packed(value, size)
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
        size = size_of(value)
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


def packed(value: Any, size: Size) -> Any:
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
