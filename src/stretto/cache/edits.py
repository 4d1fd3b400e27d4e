"""Edits of the table of cells that may be interrupted anywhere: what they will change is noted first.

Ctrl-C, a MemoryError, or an exception that another thread sets can come between any two byte codes. An edit
that did not reach its end is undone before the next one begins (`Cells.repair`): sequences get back the cells
that they had, and all else (who shares a cell, which are free) is counted anew from them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stretto.cache.views import View

Ints = NDArray[np.int32]


class Before(NamedTuple):
    """A sequence before an edit: its view, if it had any, and the cells in that."""

    sequence: int
    view: View | None
    n: int
    cells: Ints | None  # a copy; None where the edit leaves the first n entries of the view as they are


class Edit:
    """Sequences and cells before an edit changes them; a `held` edit lasts until it is committed."""

    __slots__ = ("_appended", "_changed", "columns", "held")

    def __init__(self, held: bool = False) -> None:
        self.held = held
        self._changed: dict[int, Before] = {}
        self._appended: list[tuple[Sequence[int], Sequence[View | None], list[int]]] = []
        self.columns: list[tuple[Ints, Ints, Ints]] = []  # cells, their positions, their tokens

    def note_appended(self, sequences: Sequence[int], views: Sequence[View | None]) -> None:
        """Cells are about to be appended to sequences, and nothing else."""
        self._appended.append((sequences, views, [0 if view is None else view.n for view in views]))

    def note(self, sequence: int, view: View | None, is_copied: bool = True) -> None:
        """A view is about to change; not `is_copied` if its store keeps the entries that are in it now."""
        if sequence not in self._changed:
            if view is None:
                self._changed[sequence] = Before(sequence, None, 0, None)
            else:
                cells = view.store[: view.n].copy() if is_copied else None
                self._changed[sequence] = Before(sequence, view, view.n, cells)

    def note_columns(self, cells: Ints, positions: Ints, tokens: Ints) -> None:
        """Positions or tokens of cells are about to change."""
        self.columns.append((cells, positions[cells], tokens[cells]))

    def before(self) -> Iterator[Before]:
        """All sequences as they were, the earliest note of each last."""
        yield from self._changed.values()
        for sequences, views, counts in reversed(self._appended):
            for sequence, view, n in zip(sequences, views, counts, strict=True):
                yield Before(sequence, view, n, None)
