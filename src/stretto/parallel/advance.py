"""A sequence whose next step may be several tokens at one position, all of them in one forward pass.

Who sees whom is a matter of sets. A member that may not see all its siblings gets a lane: a sequence of its
own that shares the past. It is placed in its lane, in the lanes of those who may see it, and in the sequence
itself; it attends from its lane. When the pass is over the lanes are let go, and the sequence has the whole
set. Members that all see each other need no lanes.

The sets are remembered. A sequence that had to give its cells up computes them again, several in a pass, and
forgets again what was pruned, each where it was pruned: so what follows is the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from stretto.backends.base import Batch
from stretto.engine.engine import Engine
from stretto.engine.sequence import Row, Rows, Sequence
from stretto.parallel.select import mixed_row, shares
from stretto.parallel.types import Attention, Floats, Place
from stretto.sampling.rng import RandomStream

Matrix = NDArray[np.bool_]  # bool[members, members]: whether the row's member sees the column's

AGAIN = 64  # tokens of sets that are computed again in one pass, about


@dataclass
class _Set:
    """A set, and all that has to be known to compute it again."""

    tokens: list[int]
    sees: Matrix | None  # None: all see all
    weights: list[float] | None  # of the mixture that follows it; None: what the first member says follows
    gone: list[Place] = field(default_factory=list)  # what left the cache when it had been computed

    @property
    def order(self) -> list[int]:
        """The members in order of id: a view is kept so, and need not be sorted then."""
        return sorted(range(len(self.tokens)), key=self.tokens.__getitem__)

    def seers(self, member: int) -> list[int]:
        """The others who see a member."""
        if self.sees is None:
            return []
        return [i for i in range(len(self.tokens)) if self.sees[i, member] and i != member]


class SetSequence(Sequence):
    """A sequence that goes on by sets. Rows of what it gives stand in the order of the set's tokens."""

    def __init__(
        self, engine: Engine, tokens: Iterable[int] = (), random: RandomStream | None = None
    ) -> None:
        self._sets: list[_Set] = []  # all of them
        self._n_done = 0  # how many have been computed
        self._n_entered = 0  # how many are in the batch that is being computed
        self._lanes: list[int] = []
        self._batch: Batch | None = None  # the one that the last set was put into
        self._first = 0  # its first row there
        self._columns = slice(0, 0)  # of the probed cells there
        self.probed: list[Place] = []  # members whose attention from the next set is wanted
        self.watching = False  # whether the whole attention of sets is wanted
        self.rows: Rows = np.empty((0, 0), np.float32)  # float32[members, n_vocab], as the model gave them
        self.each: Rows = self.rows  # the distributions they stand for
        self.unmixed = True  # whether the next logits are those of one member
        self._given: Row | None = (
            None  # the logits it began with, if another sequence gave them: edited perhaps
        )
        self.received: Floats | None = None  # float32[members, probed]
        self.attention: Attention | None = None
        self.released = False  # it has given its cells up; members have other ones since
        super().__init__(engine, tokens, RandomStream(None) if random is None else random)
        self._begin()

    def _begin(self) -> None:
        """What is here now was there before the first set."""
        self._n_given = len(self._tokens)
        self._said = list(self._tokens)
        self._repeatable = self._exact is None

    @property
    def n_pending(self) -> int:
        """How many tokens have no cell yet."""
        return super().n_pending + sum([len(one.tokens) for one in self._sets[self._n_done :]])

    @property
    def position(self) -> int:
        """The position of the next set, or of the one that is to be computed: one more for each set."""
        return self._start + super().n_pending

    @property
    def at_end(self) -> bool:
        """A set takes the long way, also if it has one member."""
        return self._n_done == len(self._sets) and super().at_end

    @property
    def path(self) -> list[int]:
        """The prompt and the best path, for hooks."""
        return self._said

    @property
    def exact(self) -> bool:
        """Whether it can be computed again: what it began with has not been edited."""
        return self._repeatable

    def follow(self, other: Sequence) -> None:
        """Go on from where another sequence stands."""
        super().follow(other)
        self._begin()
        if self._logits is not None:
            self._given = self._logits
            self._gave(self._given[np.newaxis])

    def push(self, tokens: list[int], sees: Matrix | None, weights: list[float] | None = None) -> None:
        """Make these tokens, each another, the set that is computed next.

        `weights` are those of the mixture that is the next distribution; None: that of the first token.
        """
        self._sets.append(_Set(list(tokens), None if sees is None or sees.all() else sees, weights))
        self._said.append(tokens[0])
        self.at_once = len(tokens)
        self._logits = None

    def cells_of(self, position: int) -> dict[int, int]:
        """The cell of each token at a position."""
        table = self._engine.cells
        view = table.view(self.id)
        first, last = np.searchsorted(table.positions[view], (position, position + 1)).tolist()
        cells = view[first:last]
        return dict(zip(table.tokens[cells].tolist(), cells.tolist(), strict=True))

    def forget(self, members: list[Place]) -> int:
        """Take members out of the cache; return how many cells became free."""
        self._sets[-1].gone = members
        return self._remove_members(members)

    def _remove_members(self, members: list[Place]) -> int:
        table = self._engine.cells
        cells = [self.cells_of(position)[token] for position, token in members]
        gone = np.isin(table.view(self.id), cells)
        self._tokens = [token for token, out in zip(self._tokens, gone, strict=True) if not out]
        return table.remove_cells(self.id, cells)

    def release(self) -> None:
        """Give the cells up: all sets are computed again, those before the first wide one as a prompt."""
        self._drop_lanes()
        exact = len(self._tokens) if self._exact is None else self._exact
        again = max(0, min(exact - self._n_given, len(self._sets) - 1))
        super().release()
        del self._tokens[self._n_given + again :]
        self._n_done = again
        self.released = True

    def close(self, *, park: bool = True) -> None:
        """Let it go. What stands before its first set stays parked."""
        with self._engine.lock:
            self._drop_lanes()
            super().close(park=park)

    # -- for the engine --

    def prepare(self) -> None:
        """An interrupted step has left it without logits: they are made again from the rows."""
        if self._sets:
            self._undo()
            if self._n_done == len(self._sets):
                self.forget_logits()
        else:
            super().prepare()

    def forget_logits(self) -> None:
        """A hook was interrupted while it changed them: the rows are as they were."""
        self._gave(self.rows)

    def enter(self, batch: Batch, most: int) -> int:
        """Put the next set into a batch; or a piece of the prompt, or some sets that are computed again."""
        self._drop_lanes()  # of an attempt that failed
        self._undo()
        self._n_entered = 0
        if super().n_pending:
            return super().enter(batch, most)
        sets = self._sets[self._n_done :]
        if len(sets) > 1:
            sets = _first_of(sets[:-1], min(most, AGAIN))
            self._put(batch, sets, logits=False)
            return 0
        self._batch, self._first = batch, len(batch)
        self._put(batch, sets, logits=True)
        if self.probed:
            cells = [self.cells_of(position)[token] for position, token in self.probed]
            self._columns = batch.probe(cells)
        if self.watching:
            for row in range(self._first, len(batch)):
                batch.watch(row)
        return len(sets[0].tokens)

    def _put(self, batch: Batch, sets: list[_Set], logits: bool) -> None:
        """Put sets that follow each other into a batch. Each is in the lanes of all that come later."""
        position, self._n_entered = self._start, len(sets)
        lanes: list[list[int]] = []
        for one in sets:
            lanes.append([] if one.sees is None else [self._engine.new_id() for _ in one.tokens])
            for lane in lanes[-1]:
                self._lanes.append(lane)
                self._engine.cells.copy(self.id, lane)
        for at, one in enumerate(sets):
            later = [lane for several in lanes[at + 1 :] for lane in several]
            for i in one.order:
                own = [lanes[at][k] for k in (i, *one.seers(i))] if lanes[at] else []
                batch.add(one.tokens[i], position + at, (*own, self.id, *later), logits=logits)

    def leave(self, rows: Rows) -> None:
        """What `enter` put into a batch has been computed."""
        if not self._n_entered:
            super().leave(rows)
            return
        sets = self._sets[self._n_done : self._n_done + self._n_entered]
        last = len(rows) > 0
        if last:
            back = np.argsort(sets[0].order)  # from the order of ids to that of the set
            self.rows = rows[back] if len(rows) > 1 else rows
            self._look(back)
        wide = [at for at, one in enumerate(sets) if len(one.tokens) > 1]
        if wide and self._exact is None:
            self._exact = len(self._tokens) + wide[0]  # a prompt can share what stands before the first
        new = [token for one in sets for token in sorted(one.tokens)]
        self._tokens += new
        self._n_done += len(sets)
        self._drop_lanes()
        if last:
            self.at_once = 1
            self._gave(self.rows)
        elif sets[-1].gone:
            self._remove_members(sets[-1].gone)

    def computed(self, row: Row | None) -> None:
        """The prompt, or a piece of it, has been computed."""
        if row is None or self._n_done < len(self._sets):
            super().computed(None)
        else:
            given = None if self._sets else self._given
            self._gave((row if given is None else given)[np.newaxis])

    def _gave(self, rows: Rows) -> None:
        """Take the logits of a set, and make those that the next one is taken from: hooks may change them."""
        self.rows, self.each = rows, shares(rows)
        weights = self._sets[-1].weights if self._sets else None
        self.unmixed = len(rows) == 1 or weights is None
        super().computed(rows[0].copy() if self.unmixed else mixed_row(self.each, weights or []))

    def _undo(self) -> None:
        """Give back the cells of an interrupted pass, of which nobody knows."""
        extra = -super().n_pending
        if extra > 0:
            table = self._engine.cells
            table.remove_cells(self.id, table.view(self.id)[-extra:].tolist())

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


def _first_of(sets: list[_Set], most: int) -> list[_Set]:
    """The first sets that one pass can take: about as many tokens, and none behind one that was pruned."""
    n = 0
    for at, one in enumerate(sets):
        n += len(one.tokens)
        if at and n > most:
            return sets[:at]
        if one.gone:
            return sets[: at + 1]
    return sets
