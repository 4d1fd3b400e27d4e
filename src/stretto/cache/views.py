"""A sequence's cells in position order, kept incrementally.

Generating appends at the end, which costs a store into a growing array; only tokens placed out of order
(parallel tokens, merged forks) cost a sort.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import count

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]

NOTHING = (-1, -1)

_edits = count(1)


class View:
    """A growing array of cells in order of (position, token).

    `edits` is the number of its last edit other than appending at the end, among those of all views: while
    it stays, cells that were in the view are where they were. So a copy elsewhere can be kept up to date.
    """

    __slots__ = ("_shown", "edits", "last", "n", "store")

    def __init__(self) -> None:
        self.store = np.empty(16, np.int32)  # its first n entries are the cells
        self.n = 0  # how many cells
        self.edits = next(_edits)
        self._shown: Ints | None = None
        self.last = NOTHING  # position and token of the last cell

    def __len__(self) -> int:
        return self.n

    @property
    def cells(self) -> Ints:
        """int32[n], read-only; valid until the next change."""
        if self._shown is None:
            self._shown = self.store[: self.n]
            self._shown.flags.writeable = False
        return self._shown

    def append(self, cell: int, position: int, token: int, positions: Ints, tokens: Ints) -> None:
        """Add one cell: the step of a generating sequence."""
        if self.n == len(self.store):
            self._grow(self.n + 1)
        self.store[self.n] = cell
        self.n += 1
        self._shown = None
        if self.last < (position, token):
            self.last = (position, token)
        else:
            self.sort(positions, tokens)

    def follow_up(self, cell: int, token: int) -> int:
        """Add one cell after the last position and return its position; the order needs no check."""
        n, position = self.n, self.last[0] + 1
        if n == len(self.store):
            self._grow(n + 1)
        self.store[n] = cell
        self.n = n + 1
        self._shown = None
        self.last = (position, token)
        return position

    def copy(self) -> View:
        """Another view of the same cells, with room for a few more."""
        view = View()
        view.n, view.last = self.n, self.last
        view.store = np.empty(self.n + 16, np.int32)
        view.store[: self.n] = self.store[: self.n]
        return view

    def extend(self, cells: Ints, positions: Ints, tokens: Ints) -> None:
        """Add cells whose positions and tokens are in the table's columns."""
        n = self.n + len(cells)
        if n > len(self.store):
            self._grow(n)
        self.store[self.n : n] = cells
        self.n = n
        self._shown = None
        added = positions[cells]
        first = (int(added[0]), int(tokens[cells[0]]))
        if self.last < first and _in_order(added, tokens[cells]):
            self.last = (int(added[-1]), int(tokens[cells[-1]]))
        else:
            self.sort(positions, tokens)

    def drop(self, cells: Ints, positions: Ints, tokens: Ints) -> None:
        """Take `cells` out; the others keep their order."""
        n = self.n - len(cells)
        if not np.array_equal(cells, self.store[n : self.n]):  # or else the end is cut off
            remaining = self.store[: self.n]
            remaining = remaining[~np.isin(remaining, cells)]
            self.store[: len(remaining)] = remaining
        self.n = n
        self.edits = next(_edits)
        self._shown = None
        self._find_last(positions, tokens)

    def restore(self, n: int, cells: Ints | None, positions: Ints, tokens: Ints) -> None:
        """Become what it was: its first n entries, or these cells."""
        if cells is not None:
            store = np.empty(max(16, n), np.int32)
            store[:n] = cells
            self.store = store
        self.n = n
        self.sort(positions, tokens)

    def sort(self, positions: Ints, tokens: Ints) -> None:
        """Put the cells into order again."""
        cells = self.store[: self.n]
        cells[:] = cells[np.lexsort((tokens[cells], positions[cells]))]
        self.edits = next(_edits)
        self._shown = None
        self._find_last(positions, tokens)

    def index(self, position: int, positions: Ints) -> int:
        """How many cells are at positions below `position`."""
        if position > self.last[0]:
            return self.n
        return bisect_left(self.store, position, 0, self.n, key=positions.__getitem__)

    def _find_last(self, positions: Ints, tokens: Ints) -> None:
        cell = self.store[self.n - 1]
        self.last = (int(positions[cell]), int(tokens[cell])) if self.n else NOTHING

    def _grow(self, n: int) -> None:
        grown = np.empty(max(n, 2 * len(self.store)), np.int32)
        grown[: self.n] = self.store[: self.n]
        self.store = grown


def follow_up_each(views: list[View], cells: list[int], tokens: list[int]) -> list[int]:
    """`View.follow_up` of each view, without a call for each: their positions."""
    positions = []
    for view, cell, token in zip(views, cells, tokens, strict=True):
        n, store, position = view.n, view.store, view.last[0] + 1
        if n == len(store):
            view._grow(n + 1)
            store = view.store
        store[n] = cell
        view.n, view._shown, view.last = n + 1, None, (position, token)
        positions.append(position)
    return positions


def _in_order(positions: Ints, tokens: Ints) -> bool:
    """Whether cells with these positions and tokens are in the order of a view."""
    later = positions[1:] > positions[:-1]
    if later.all():
        return True
    parallel = (positions[1:] == positions[:-1]) & (tokens[1:] > tokens[:-1])  # tokens at one position
    return bool((later | parallel).all())
