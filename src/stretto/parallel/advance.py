"""A sequence whose next step may be several tokens at one position, all of them in one forward pass.

Who sees whom is a matter of sets. A member that may not see all its siblings gets a lane: a sequence of its
own that shares the past. It is placed in its lane, in the lanes of those who may see it, and in the sequence
itself; it attends from its lane. When the pass is over the lanes are let go, and the sequence has the whole
set. Members that all see each other need no lanes.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from stretto.backends.base import Batch
from stretto.engine.engine import Engine
from stretto.engine.sequence import Row, Rows, Sequence
from stretto.parallel.types import Attention, Floats, Ints
from stretto.sampling.rng import RandomStream

Matrix = NDArray[np.bool_]  # bool[members, members]: whether the row's member sees the column's


class SetSequence(Sequence):
    """A sequence that goes on by sets. Rows of what it gives stand in the order of the set's tokens."""

    def __init__(
        self, engine: Engine, tokens: Iterable[int] = (), random: RandomStream | None = None
    ) -> None:
        self._set: list[int] = []  # the tokens of the set that is to be computed
        self._sees: Matrix | None = None  # None: all see all
        self._lanes: list[int] = []
        self._batch: Batch | None = None  # the one that the set was put into
        self._first = 0  # its first row there
        self._columns = slice(0, 0)  # of the probed cells there
        self.probed: list[int] = []  # cells whose attention from the next set is wanted
        self.watching = False  # whether the whole attention of sets is wanted
        self.rows: Rows = np.empty((0, 0), np.float32)  # float32[members, n_vocab], of the last set
        self.cells: Ints = np.empty(0, np.int32)  # int32[members], of the last set
        self.received: Floats | None = None  # float32[members, probed]
        self.attention: Attention | None = None
        super().__init__(engine, tokens, RandomStream(None) if random is None else random)

    @property
    def n_pending(self) -> int:
        """How many tokens have no cell yet."""
        return super().n_pending + len(self._set)

    @property
    def position(self) -> int:
        """The position of the next token: one after a set, whatever its width."""
        return self._start + super().n_pending + (1 if self._set else 0)

    @property
    def at_end(self) -> bool:
        """A set takes the long way, also if it has one member."""
        return not self._set and super().at_end

    def follow(self, other: Sequence) -> None:
        """Go on from where another sequence stands."""
        super().follow(other)
        if self._logits is not None:
            self.rows = self._logits[np.newaxis]

    def push(self, tokens: list[int], sees: Matrix | None) -> None:
        """Make these tokens, each another, the set that is computed next."""
        self._set = list(tokens)
        self._sees = None if sees is None or sees.all() else sees
        self.at_once = len(tokens)
        self._logits = None

    def forget(self, cells: list[int]) -> int:
        """Take members out of the cache; return how many cells became free."""
        table = self._engine.cells
        gone = np.isin(table.view(self.id), cells)
        self._tokens = [token for token, out in zip(self._tokens, gone, strict=True) if not out]
        return table.remove_cells(self.id, cells)

    def close(self, *, park: bool = True) -> None:
        """Let it go. What stands before its first set stays parked."""
        with self._engine.lock:
            self._drop_lanes()
            super().close(park=park)

    # -- for the engine --

    def enter(self, batch: Batch, most: int) -> int:
        """Put the set into a batch, or as much of the prompt as is wanted."""
        if not self._set:
            return super().enter(batch, most)
        self._drop_lanes()  # of an attempt that failed
        position = self._start
        self._batch, self._first = batch, len(batch)
        if self._sees is not None:
            self._lanes = [self._engine.new_id() for _ in self._set]
            for lane in self._lanes:
                self._engine.cells.copy(self.id, lane)
        for i in self._order:
            batch.add(self._set[i], position, self._sets_of(i), logits=True)
        if self.probed:
            self._columns = batch.probe(self.probed)
        if self.watching:
            for row in range(self._first, len(batch)):
                batch.watch(row)
        return len(self._set)

    def leave(self, rows: Rows) -> None:
        """The set, or a piece of the prompt, has been computed."""
        if not self._set:
            super().leave(rows)
            return
        n = len(self._set)
        back = np.argsort(self._order)  # from the order of ids to that of the set
        self.rows = rows[back] if n > 1 else rows
        self.cells = self._engine.cells.view(self.id)[-n:][back]
        self._look(back)
        if n > 1 and self._exact is None:
            self._exact = len(self._tokens)  # a prompt can share what stands before the first set
        self._tokens += sorted(self._set)
        self._set, self._sees, self.at_once = [], None, 1
        self._drop_lanes()
        super().computed(self.rows[0])

    def computed(self, row: Row | None) -> None:
        """The prompt, or a piece of it, has been computed."""
        super().computed(row)
        if row is not None:
            self.rows = row[np.newaxis]

    @property
    def _order(self) -> list[int]:
        """The members in order of id: a view is kept so, and need not be sorted then."""
        return sorted(range(len(self._set)), key=self._set.__getitem__)

    def _sets_of(self, member: int) -> tuple[int, ...]:
        """The sequences that a member is put into; it attends from the first."""
        if self._sees is None:
            return (self.id,)
        seers = [i for i in range(len(self._set)) if self._sees[i, member] and i != member]
        return (self._lanes[member], *[self._lanes[i] for i in seers], self.id)

    def _drop_lanes(self) -> None:
        for lane in self._lanes:
            self._engine.cells.remove(lane)
        self._lanes = []

    def _look(self, back: NDArray[np.intp]) -> None:
        """Keep what the pass has told about attention."""
        batch, self._batch = self._batch, None
        self.received = self.attention = None
        if batch is None or batch.placement is None:
            return
        mine = range(self._first, self._first + len(back))
        if batch.received is not None and self.probed:
            self.received = batch.received[mine.start : mine.stop, self._columns][back]
        if not self.watching:
            return
        table, placement, spec = self._engine.cells, batch.placement, self._engine.spec
        view = table.view(self.id).copy()
        column = np.full(len(table), -1, np.intp)
        column[view] = np.arange(len(view))
        weights = np.zeros((spec.n_layer, spec.n_head, len(back), len(view)), np.float32)
        for at, row in enumerate(batch.watched):
            if row in mine:
                seen = placement.views[placement.view_of[row]][: placement.lengths[row]]
                weights[:, :, row - mine.start, column[seen]] = batch.attention[at]
        self.attention = Attention(weights[:, :, back], view, table.positions[view], table.tokens[view])
