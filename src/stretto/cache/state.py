"""The state of a table of cells, and its repair after an edit that an exception interrupted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stretto.cache.slots import Slots
from stretto.cache.views import View
from stretto.errors import CacheFull, wrong_value

# Edits of the table of cells that may be interrupted anywhere: what they will change is noted first.
#
# Ctrl-C, a MemoryError, or an exception that another thread sets can come between any two byte codes. An
# edit that did not reach its end is undone before the next one begins (`Cells.repair`): sequences get back
# the cells that they had, and all else (who shares a cell, which are free) is counted anew from them.


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


# Which cells are free: a stack, from which low cells are taken first.


class FreeCells(list[int]):
    """The free ones of a number of cells; the next to be taken are at the end."""

    __slots__ = ("n_cells",)

    def __init__(self, n_cells: int) -> None:
        super().__init__(range(n_cells - 1, -1, -1))
        self.n_cells = n_cells

    def take(self, n: int) -> list[int]:
        """Free cells, low ones first; all or none: without enough of them `CacheFull`."""
        if n > len(self):
            raise CacheFull(
                f"{n} cells are needed and {len(self)} of {self.n_cells} are free; "
                "close sequences, or load the model with more cells",
                n_needed=n,
                n_free=len(self),
            )
        taken = self[: -n - 1 : -1]
        del self[len(self) - n :]
        return taken

    def give_back(self, cells: NDArray[np.int32]) -> None:
        """Have cells taken again, the lowest of them next."""
        self.extend(np.sort(cells)[::-1].tolist())

    def reset(self, is_free: NDArray[np.bool_]) -> None:
        """Have just those cells free whose entry is set."""
        self[:] = np.flatnonzero(is_free)[::-1].tolist()


Ints = NDArray[np.int32]


class CellState:
    """Columns of cells, the sequences' views of them, and which cells are free.

    Views, positions and tokens are the truth; `repair` counts all else from them.
    """

    def __init__(self, n_cells: int, slots: Slots | None = None) -> None:
        if isinstance(n_cells, bool) or not isinstance(n_cells, int) or not 1 <= n_cells <= 1 << 30:
            raise wrong_value("cells", n_cells, "an integer from 1 to 2^30")
        self.n_cells = n_cells
        self.slots = slots  # the states of recurrent layers, if the model has any
        self.positions = np.full(n_cells, -1, np.int32)
        self.tokens = np.full(n_cells, -1, np.int32)
        self.shares = np.zeros(n_cells, np.int32)
        self.views: dict[int, View] = {}  # of the sequences that have cells
        self.lags: Ints | None = None  # how far rotated positions are behind (cache/lags.py), if any are
        self.version = 0  # raised by every edit
        self._edit: Edit | None = None  # that is under way, or was interrupted
        self._free = FreeCells(n_cells)

    # -- edits that are interrupted --

    @property
    def is_interrupted(self) -> bool:
        """Whether an edit did not come to its end, or one is held."""
        return self._edit is not None

    def hold(self) -> None:
        """Have the next edits undone together, unless `commit` comes: cells are placed, then computed."""
        if self._edit is not None:
            self.repair()
        self._edit = Edit(held=True)

    def commit(self) -> None:
        """End `hold`: what was done since stays."""
        self._edit = None

    def rollback(self) -> None:
        """End `hold`: what was done since is undone."""
        if self._edit is not None:
            self._edit.held = False
            self.repair()

    def repair(self, anyway: bool = False) -> None:
        """Undo the edit that was interrupted, and count anew all that follows from the views."""
        edit = self._edit
        if edit is None:
            if not anyway:
                return
            self._edit = edit = Edit()
        for cells, positions, tokens in reversed(edit.columns):
            self.positions[cells] = positions
            self.tokens[cells] = tokens
        for sequence, view, n, kept in edit.before():
            if view is None or not n:
                self.views.pop(sequence, None)
            else:
                view.restore(n, kept, self.positions, self.tokens)
                self.views[sequence] = view
        for sequence in [sequence for sequence, view in self.views.items() if not view.n]:
            del self.views[sequence]
        if self.slots is not None:
            self._match_states()
        self._count()
        self._edit = None

    def _match_states(self) -> None:
        """Take each sequence back to the last state that is not behind its cells, and its cells to that."""
        assert self.slots is not None
        self.slots.repair()
        for sequence in {*self.views, *self.slots.views}:
            view = self.views.get(sequence)
            n = self.slots.nearest(sequence, 0 if view is None else view.n)
            self.slots.cut(sequence, n)
            if view is not None and not n:
                del self.views[sequence]
            elif view is not None and view.n != n:
                view.restore(n, None, self.positions, self.tokens)

    def _count(self) -> None:
        """Find the free cells, and how many sequences share each of the others."""
        shares = np.zeros(self.n_cells, np.int32)
        for view in self.views.values():
            shares[view.store[: view.n]] += 1
        self.shares[:] = shares
        free = shares == 0
        self.positions[free] = self.tokens[free] = -1
        self._free.reset(free)
        self.version += 1

    @contextmanager
    def _held(self) -> Iterator[None]:
        """Edits within it are one."""
        edit = self._edit
        if edit is not None and edit.held:
            yield
            return
        self.hold()
        try:
            yield
            self.commit()
        except BaseException:
            self.rollback()
            raise

    def _recover(self) -> None:
        edit = self._edit
        if edit is not None and not edit.held:
            self.repair()

    def _begin(self) -> Edit:
        """The edit that is held, or a new one; an interrupted one is undone first."""
        edit = self._edit
        if edit is None or not edit.held:
            if edit is not None:
                self.repair()
            edit = Edit()
        return edit

    def _note(self, sequence: int) -> None:
        assert self._edit is not None
        self._edit.note(sequence, self.views.get(sequence))

    def _end(self) -> None:
        self.version += 1
        edit = self._edit
        if edit is not None and not edit.held:
            self._edit = None

    # -- consistency --

    def check(self) -> None:
        """Raise `RuntimeError` if the table contradicts itself anywhere."""
        shares = np.zeros(self.n_cells, np.int32)
        for sequence, view in self.views.items():
            if not view:
                raise RuntimeError(f"sequence {sequence} has an empty view")
            if len(np.unique(view.cells)) != len(view.cells):
                raise RuntimeError(f"sequence {sequence} has a cell twice")
            order = np.lexsort((self.tokens[view.cells], self.positions[view.cells]))
            keys = np.stack((self.positions[view.cells], self.tokens[view.cells]))
            if not np.array_equal(keys, keys[:, order]):
                raise RuntimeError(f"the view of sequence {sequence} is out of order")
            shares[view.cells] += 1
        if not np.array_equal(shares, self.shares):
            raise RuntimeError("the counts of sharing sequences are wrong")
        free = np.zeros(self.n_cells, bool)
        free[self._free] = True
        if free.sum() != len(self._free) or not np.array_equal(free, shares == 0):
            raise RuntimeError("the free cells are not those without a sequence")
        if (self.positions[free] != -1).any() or (self.positions[~free] < 0).any():
            raise RuntimeError("positions must be −1 in free cells and only there")
        if self.slots is not None:
            self.slots.check()
            for sequence in {*self.views, *self.slots.views}:
                if not _agree(self.slots, sequence, self.views.get(sequence), self.positions):
                    raise RuntimeError(f"the state of sequence {sequence} is not at the end of its cells")


def _agree(slots: Slots, sequence: int, view: View | None, positions: Ints) -> bool:
    """Whether a sequence's state stands at the end of its cells, which have no holes."""
    n = 0 if view is None else view.n
    return slots.position(sequence) == n == (int(positions[view.cells[-1]]) + 1 if view else 0)
