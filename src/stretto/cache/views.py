"""A sequence's cells in position order, kept incrementally.

Generating appends at the end, which costs a store into a growing array; only tokens placed out of order
(parallel tokens, merged forks) cost an insertion.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]


class View:
    """A growing, ordered array of cells; `cells` shows what is in it."""

    def __init__(self) -> None:
        self._store = np.empty(16, np.int32)
        self._n = 0
        self._last = (-1, -1)  # position and token of the last cell
        self._show()

    cells: Ints  # int32[n], read-only

    def add(self, cells: Ints, positions: Ints, tokens: Ints) -> None:
        """Add `cells`, whose positions and tokens stand in the table's columns."""
        n = self._n + len(cells)
        if n > len(self._store):
            grown = np.empty(max(n, 2 * len(self._store)), np.int32)
            grown[: self._n] = self._store[: self._n]
            self._store = grown
        self._store[self._n : n] = cells
        if len(cells) == 1:  # the step of a generating sequence: no NumPy beyond the store
            first = last = (int(positions[cells[0]]), int(tokens[cells[0]]))
            ordered = True
        else:
            where, what = positions[cells], tokens[cells]
            first, last = (int(where[0]), int(what[0])), (int(where[-1]), int(what[-1]))
            ordered = bool((np.diff(where) > 0).all())
        in_order = ordered and self._last < first
        self._n = n
        self._last = last
        self._show()
        if not in_order:
            self.sort(positions, tokens)

    def drop(self, cells: Ints, positions: Ints, tokens: Ints) -> None:
        """Take `cells` out; the others keep their order."""
        if len(cells) == self._n:
            kept = cells[:0]
        elif np.array_equal(cells, self.cells[-len(cells) :]):  # the end was cut off
            kept = self.cells[: -len(cells)]
        else:
            kept = self.cells[~np.isin(self.cells, cells)]
        self._store = kept.copy() if len(kept) > 16 else np.resize(kept, 16).astype(np.int32)
        self._n = len(kept)
        self._last = (int(positions[kept[-1]]), int(tokens[kept[-1]])) if self._n else (-1, -1)
        self._show()

    def sort(self, positions: Ints, tokens: Ints) -> None:
        """Put the cells into order again."""
        cells = self._store[: self._n]
        cells[:] = cells[np.lexsort((tokens[cells], positions[cells]))]
        if self._n:
            self._last = (int(positions[cells[-1]]), int(tokens[cells[-1]]))

    def _show(self) -> None:
        self.cells = self._store[: self._n]
        self.cells.flags.writeable = False
