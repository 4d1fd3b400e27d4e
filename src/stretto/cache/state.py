"""The state of a table of cells, and its repair after an edit that an exception interrupted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from stretto.cache.edits import Edit
from stretto.cache.free import FreeCells
from stretto.cache.slots import Slots
from stretto.cache.views import View
from stretto.errors import InvalidRequest

Ints = NDArray[np.int32]


class CellState:
    """Columns of cells, the sequences' views of them, and which cells are free.

    Views, positions and tokens are the truth; `repair` counts all else from them.
    """

    def __init__(self, n_cells: int, slots: Slots | None = None) -> None:
        if isinstance(n_cells, bool) or not isinstance(n_cells, int) or not 1 <= n_cells <= 1 << 30:
            raise InvalidRequest(
                f"cells must be an integer from 1 to 2^30, not {n_cells!r}", param="cells", value=n_cells
            )
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
