"""A mirror of a model's table of cells: for each cell its position and the number of its set of sequences.

Cells with the same sequences have the same number, so that a page needs two small numbers a cell. Copies of
the table's changes keep the mirror up to date; the work is in proportion to what has changed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stretto.cache.following import NOTHING, TableDelta
from stretto.engine.copying import SequenceState, TableCopy

Ints = NDArray[np.int32]
Numbers = NDArray[np.uint16]
Members = tuple[int, ...]  # in order
Moves = dict[int, tuple[Ints, Ints]]  # the cells that came to a sequence, and those that went

FREE = 0  # the number of the empty set
UNNAMED = 0xFFFF  # of a cell in use whose sequences are not told
MAX_SETS = UNNAMED - 1
FEW_CELLS = 1024  # up to which going through them is faster than sorting
MAX_PIECES = 64  # of a sequence's cells, before they are joined


class Mirror:
    """Columns of a table and its sequences, by the copies it was given.

    - `positions`, `sets`, `images`: of each cell; −1, `FREE` and False if it is free
    - `members`: the sequences of each set in use, by its number; beyond 65,534 sets some are `UNNAMED`
    - `states`, `counts`: of each sequence its state and number of cells; `salts` of those that have one
    - `epoch`: raised whenever numbers of sets get another meaning
    """

    def __init__(self, n_cells: int) -> None:
        self.epoch = 0
        self._random = np.random.default_rng()
        self._clear(n_cells)

    def _clear(self, n_cells: int) -> None:
        self.positions = np.full(n_cells, -1, np.int32)
        self.images = np.zeros(n_cells, bool)
        self.states: dict[int, SequenceState] = {}
        self.salts: dict[int, str] = {}
        self.counts: dict[int, int] = {}
        self._cells: dict[int, list[Ints]] = {}  # of each sequence, in pieces
        self._clear_sets(n_cells)

    def _clear_sets(self, n_cells: int) -> None:
        self.epoch += 1
        self.sets = np.zeros(n_cells, np.uint16)
        self.members: dict[int, Members] = {FREE: ()}
        self._marks = np.zeros(n_cells, np.uint64)  # the sum of random numbers, one for each sequence
        self._mixes: dict[int, int] = {}
        self._numbers: dict[int, int] = {0: FREE}  # of the sets in use, by mark
        self._sizes = np.zeros(UNNAMED + 1, np.int64)  # how many cells each set has
        self._next = FREE + 1

    def __len__(self) -> int:
        return len(self.positions)

    def cells_of(self, sequence: int) -> Ints:
        """A sequence's cells."""
        pieces = self._cells.get(sequence, [])
        return np.concatenate(pieces) if pieces else NOTHING

    def apply(self, copied: TableCopy) -> NDArray[np.int64]:
        """Take changes over; return the cells in which anything is different now."""
        delta, cells = copied.delta, copied.delta.cells
        if delta.complete or copied.n_cells != len(self):
            self._clear(copied.n_cells)
        before = self.positions[cells], self.sets[cells], self.images[cells]
        self.positions[cells], self.images[cells] = delta.positions, copied.images
        self._number(cells, self._move(delta))
        self.states, self.salts = copied.states, copied.salts
        if self._next > MAX_SETS and 2 * len(self.members) < MAX_SETS:
            self._renumber()
        now = self.positions[cells], self.sets[cells], self.images[cells]
        differs = [old != new for old, new in zip(before, now, strict=True)]
        changed: NDArray[np.int64] = cells[differs[0] | differs[1] | differs[2]].astype(np.int64)
        return changed

    def _move(self, delta: TableDelta) -> Moves:
        """Note the cells of the sequences that have changed."""
        moves: Moves = {}
        grown = delta.each_grown()
        self._mark(grown, delta.ends)
        for sequence, came in grown.items():
            pieces = self._cells.setdefault(sequence, [])
            if len(pieces) >= MAX_PIECES:
                pieces[:] = [np.concatenate(pieces)]
            pieces.append(came)
            self.counts[sequence] = self.counts.get(sequence, 0) + len(came)
            moves[sequence] = came, NOTHING
        for sequence in (*delta.edited, *delta.removed):
            old, new = self.cells_of(sequence), delta.edited.get(sequence, NOTHING)
            came, went = np.setdiff1d(new, old, True), np.setdiff1d(old, new, True)
            mix = np.uint64(self._mix(sequence))
            self._marks[came] += mix
            self._marks[went] -= mix
            self._cells[sequence], self.counts[sequence] = [new], len(new)
            moves[sequence] = came, went
        for sequence in delta.removed:
            del self._cells[sequence], self.counts[sequence], self._mixes[sequence]
        return moves

    def _mark(self, cells: dict[int, Ints], joined: Ints) -> None:
        """Add sequences to the marks of their new cells."""
        mixes = np.array([self._mix(sequence) for sequence in cells], np.uint64)
        np.add.at(self._marks, joined, np.repeat(mixes, [len(each) for each in cells.values()]))

    def _mix(self, sequence: int) -> int:
        mix = self._mixes.get(sequence)
        if mix is None:
            mix = self._mixes[sequence] = int(self._random.integers(1, 1 << 63))
        return mix

    def _number(self, cells: Ints, moves: Moves) -> None:
        """Give changed cells the numbers of their sets, new ones to sets that are new."""
        if len(cells) <= FEW_CELLS:
            known = [self._numbers.get(mark, UNNAMED) for mark in self._marks[cells].tolist()]
            if UNNAMED not in known:  # nearly always: texts go on
                self._forget(self._assign(cells, np.array(known, np.uint16)))
                return
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
        emptied = self._assign(cells, numbers[inverse])
        if fresh:
            self._name(fresh, moves)
        self._forget(emptied)

    def _assign(self, cells: Ints, numbers: Numbers) -> list[int]:
        """Put cells into sets; return those that have no cells any more."""
        before = self.sets[cells]
        self.sets[cells] = numbers
        np.subtract.at(self._sizes, before, 1)
        np.add.at(self._sizes, numbers, 1)
        return [n for n in distinct(before) if not self._sizes[n] and n not in (FREE, UNNAMED)]

    def _members_of(self, cell: int) -> Members:
        """The sequences of the set that a cell was in."""
        number = int(self.sets[cell])
        if number != UNNAMED:
            return self.members[number]
        return tuple(i for i in self._cells if (self.cells_of(i) == cell).any())

    def _name(self, fresh: dict[int, Members], moves: Moves) -> None:
        """Find the sequences of new sets: those that a cell of theirs had, less those that left, and those
        that came."""
        gone: dict[int, set[int]] = {number: set() for number in fresh}
        come: dict[int, set[int]] = {number: set() for number in fresh}
        for sequence, (came, went) in moves.items():
            for cells, found in ((came, come), (went, gone)):
                for number in distinct(self.sets[cells]):
                    if number in found:
                        found[number].add(sequence)
        for number, before in fresh.items():
            self.members[number] = tuple(sorted({*before} - gone[number] | come[number]))

    def _forget(self, dead: list[int]) -> None:
        """Forget sets that have no cells any more."""
        if dead:
            for number in dead:
                del self.members[number]
            kept = self.members.keys()
            self._numbers = {mark: number for mark, number in self._numbers.items() if number in kept}

    def _renumber(self) -> None:
        """Number all sets anew: the numbers have run out."""
        self._clear_sets(len(self))
        cells = {sequence: self.cells_of(sequence) for sequence in self._cells}
        self._mark(cells, np.concatenate([NOTHING, *cells.values()]))
        moves = {sequence: (each, NOTHING) for sequence, each in cells.items()}
        self._number(np.arange(len(self), dtype=np.int32), moves)


def distinct(numbers: Numbers) -> list[int]:
    """The numbers that occur."""
    if len(numbers) <= FEW_CELLS:
        return list(set(numbers.tolist()))
    found: list[int] = np.flatnonzero(np.bincount(numbers)).tolist()
    return found
