"""A mirror of a model's table of cells: for each cell its position and the number of its set of sequences.

Cells with the same sequences have the same number, so that a page needs two small numbers a cell. Copies of
the table's changes keep the mirror up to date; the work is in proportion to what has changed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stretto.engine.copying import SequenceState, TableCopy

Ints = NDArray[np.int32]
Numbers = NDArray[np.uint16]
Members = tuple[int, ...]  # in order

FREE = 0  # the number of the empty set
UNNAMED = 0xFFFF  # of a cell in use whose sequences are not told
MAX_SETS = UNNAMED - 1


class Mirror:
    """Columns of a table and its sequences, by the copies it was given.

    - `positions`, `sets`, `images`: of each cell; −1, `FREE` and False if it is free
    - `members`: the sequences of each set in use, by its number; beyond 65,534 sets some are `UNNAMED`
    - `states`, `views`: of each sequence its state and its cells; `salts` of those that have one
    - `epoch`: raised whenever numbers of sets get another meaning
    """

    def __init__(self, n_cells: int) -> None:
        self.version = 0  # of the table
        self.epoch = 0
        self._random = np.random.default_rng()
        self._clear(n_cells)

    def _clear(self, n_cells: int) -> None:
        self.epoch += 1
        self.positions = np.full(n_cells, -1, np.int32)
        self.sets = np.zeros(n_cells, np.uint16)
        self.images = np.zeros(n_cells, bool)
        self.members: dict[int, Members] = {FREE: ()}
        self.states: dict[int, SequenceState] = {}
        self.views: dict[int, Ints] = {}
        self.salts: dict[int, str] = {}
        self._marks = np.zeros(n_cells, np.uint64)  # the sum of random numbers, one for each sequence
        self._mixes: dict[int, np.uint64] = {}
        self._numbers: dict[int, int] = {0: FREE}  # of the sets in use, by mark
        self._counts = np.zeros(UNNAMED + 1, np.int64)  # of cells in each set
        self._next = FREE + 1

    def __len__(self) -> int:
        return len(self.positions)

    def apply(self, copied: TableCopy) -> Ints:
        """Take changes over; return the cells that they are about."""
        changes = copied.changes
        if changes.complete or copied.n_cells != len(self):
            self._clear(copied.n_cells)
        self.version, cells = changes.version, changes.cells
        self.positions[cells], self.images[cells] = changes.positions, copied.images
        added = {i: self._follow(i, view) for i, view in changes.sequences.items()}
        for sequence in changes.removed:
            if sequence in self.views:
                added[sequence] = self._follow(sequence, np.empty(0, np.int32))
        self.states, self.salts = copied.states, copied.salts
        self._number(cells, added)
        if self._next > MAX_SETS and 2 * len(self.members) < MAX_SETS:
            self._renumber()
            return np.arange(len(self), dtype=np.int32)
        return cells

    def _follow(self, sequence: int, view: Ints) -> tuple[Ints, Ints]:
        """Note a sequence's cells; return those that came and those that went."""
        old = self.views.get(sequence)
        if old is None:
            old = np.empty(0, np.int32)
            self._mixes[sequence] = np.uint64(self._random.integers(1, 1 << 63))
        mix, n = self._mixes[sequence], len(old)
        if len(view) >= n and np.array_equal(view[:n], old):  # nearly always: a text grows at its end
            came, went = view[n:], view[:0]
        else:
            came, went = np.setdiff1d(view, old, True), np.setdiff1d(old, view, True)
        self._marks[came] += mix
        self._marks[went] -= mix
        if len(view):
            self.views[sequence] = view
        else:
            del self._mixes[sequence]
            self.views.pop(sequence, None)
        return came, went

    def _number(self, cells: Ints, moved: dict[int, tuple[Ints, Ints]]) -> None:
        """Give changed cells the numbers of their sets, new ones to sets that are new."""
        marks, first, inverse = np.unique(self._marks[cells], return_index=True, return_inverse=True)
        numbers, fresh = np.empty(len(marks), np.uint16), {}
        for index, mark in enumerate(marks.tolist()):
            number = self._numbers.get(mark)
            if number is None:
                number = min(self._next, UNNAMED)
                self._next += 1
                if number != UNNAMED:
                    self._numbers[mark] = number
                    fresh[number] = self._members_of(int(cells[first[index]]))
            numbers[index] = number
        before, n_before = np.unique(self.sets[cells], return_counts=True)
        self.sets[cells] = numbers[inverse]
        self._counts[before] -= n_before
        np.add.at(self._counts, numbers, np.bincount(inverse, minlength=len(numbers)))
        if fresh:
            self._name(fresh, moved)
        self._forget(before.tolist())

    def _members_of(self, cell: int) -> Members:
        """The sequences of the set that a cell was in."""
        number = int(self.sets[cell])
        if number != UNNAMED:
            return self.members[number]
        return tuple(sequence for sequence, view in self.views.items() if (view == cell).any())

    def _name(self, fresh: dict[int, Members], moved: dict[int, tuple[Ints, Ints]]) -> None:
        """Find the sequences of new sets: those that a cell of theirs had, less those that left, and those
        that came."""
        gone: dict[int, set[int]] = {number: set() for number in fresh}
        come: dict[int, set[int]] = {number: set() for number in fresh}
        for sequence, (came, went) in moved.items():
            for cells, found in ((came, come), (went, gone)):
                for number in np.unique(self.sets[cells]).tolist():
                    if number in found:
                        found[number].add(sequence)
        for number, before in fresh.items():
            self.members[number] = tuple(sorted({*before} - gone[number] | come[number]))

    def _forget(self, candidates: list[int]) -> None:
        """Forget sets that have no cells any more."""
        dead = [number for number in candidates if number not in (FREE, UNNAMED) and not self._counts[number]]
        if dead:
            for number in dead:
                del self.members[number]
            kept = self.members.keys()
            self._numbers = {mark: number for mark, number in self._numbers.items() if number in kept}

    def _renumber(self) -> None:
        """Number all sets anew: the numbers have run out."""
        views, states, salts = self.views, self.states, self.salts
        positions, images, version = self.positions, self.images, self.version
        self._clear(len(positions))
        self.positions, self.images, self.version = positions, images, version
        self.states, self.salts = states, salts
        moved = {sequence: self._follow(sequence, view) for sequence, view in views.items()}
        self._number(np.arange(len(positions), dtype=np.int32), moved)
