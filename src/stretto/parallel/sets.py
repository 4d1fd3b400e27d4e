"""A track that goes on by sets: several tokens at one position, all of them in one forward pass.

Which member sees which is a matter of sets of sequences. A member that may not see all its siblings gets a
lane: a sequence of its own that shares the past. It is placed in its lane, in the lanes of those who may see
it, and in the track itself; it attends from its lane. When the pass is over the lanes are removed, and the
track has the whole set. Members that all see each other need no lanes.

The sets are remembered. A track that was preempted computes them again, several in a pass, and removes again
what was pruned, each where it was pruned: so what follows is the same.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stretto._native import Mixture
from stretto.backends.base import Batch, DeviceRow, Mixes, Row, host_row, host_rows
from stretto.backends.base import Rows as BackendRows
from stretto.engine.runner import Runner
from stretto.engine.track import Track
from stretto.errors import InvalidRequest
from stretto.parallel.types import Attention, Floats, Place
from stretto.sampling.sampler import WRONG

# From the logits of a set to the next set: combine, temper, and keep what reaches the threshold.
#
# `pick` and `pick_from` do that in native code, which looks at few of the tokens. `select`, of what
# `combine` and `temper` make of `distributions`, is the definition.

NOT_FINITE = "the model's logits are not finite numbers; the file may be damaged"


@dataclass(frozen=True)
class Chosen:
    """The tokens of the next set, the most probable first; `end` is the end token if that was the best."""

    tokens: list[int]
    probabilities: list[float]
    end: int | None = None

    @property
    def weights(self) -> list[float]:
        """The probabilities, renormalised over the set."""
        total = sum(self.probabilities)
        return [probability / total for probability in self.probabilities]


def pick(
    mixture: Mixture, weights: list[float], threshold: float, max_width: int, ends: Collection[int] = ()
) -> Chosen:
    """`select` of a mixture of distributions, which needs no row of all tokens."""
    best, tokens, probabilities = mixture.pick(weights, threshold, max_width)
    if best in ends:
        return Chosen([], [], best)
    kept = [at for at, token in enumerate(tokens) if token not in ends]
    return Chosen([tokens[at] for at in kept], [probabilities[at] for at in kept])


def pick_from(
    row: Row, temperature: float, threshold: float, max_width: int, ends: Collection[int] = ()
) -> Chosen:
    """`select` of a row of logits that hooks may have changed: −inf excludes a token."""
    mixture = Mixture(row[np.newaxis], [0], temperature or 1.0)
    if mixture.error:
        raise InvalidRequest(WRONG[mixture.error])
    chosen = pick(mixture, [1.0], threshold, max_width if temperature else 1, ends)
    return chosen if temperature else Chosen(chosen.tokens, [1.0] * len(chosen.tokens), chosen.end)


def shares(rows: Rows) -> Rows:
    """The next-token distribution of each member: float32[members, n_vocab]. NaN where there is none."""
    with np.errstate(invalid="ignore"):
        each: Rows = np.exp(rows - rows.max(axis=1, keepdims=True))
        each /= each.sum(axis=1, keepdims=True)
    return each


def distributions(rows: Rows) -> Rows:
    """`shares`, of logits that are numbers."""
    each = shares(rows)
    if not np.isfinite(each[:, 0]).all():  # one that is no number spoils its whole row
        raise InvalidRequest(NOT_FINITE)
    return each


def combine(each: Rows, weights: ArrayLike, how: str) -> Row:
    """The next distribution after a set: the mixture of its members', or that of the best member.

    A set of one has the distribution of its member, unchanged.
    """
    if len(each) == 1 or how == "best":
        first: Row = each[0]
        return first
    mixed: Row = np.asarray(weights, np.float32) @ each
    return mixed


def mixed_row(rows: Rows, weights: ArrayLike) -> Row:
    """Logits of the mixture of some distributions: what hooks see after a set."""
    with np.errstate(divide="ignore", invalid="ignore"):
        row: Row = np.log(combine(shares(rows), weights, "mixture"))
    return row


def temper(distribution: Row, temperature: float, best: int | None = None) -> Row:
    """The distribution at a temperature: below 1 sharper, above 1 flatter, at 0 the best token alone."""
    if temperature == 1.0:
        return distribution
    if temperature == 0.0:
        only = np.zeros_like(distribution)
        only[int(np.argmax(distribution)) if best is None else best] = 1.0
        return only
    with np.errstate(divide="ignore"):
        logs = np.log(distribution) / np.float32(temperature)
    weights = np.exp(logs - logs.max())
    tempered: Row = weights / weights.sum()
    return tempered


def select(
    distribution: Row, threshold: float, max_width: int, ends: Collection[int] = (), best: int | None = None
) -> Chosen:
    """Every token with probability ≥ threshold, at most `max_width`; the best one if there is none.

    Equal probabilities stand in order of id. An end token that is the best ends the run alone; others are
    dropped from the set. `best` is the best token where logits have told it: probabilities may round to ties.
    """
    best = int(np.argmax(distribution)) if best is None else best
    if best in ends:
        return Chosen([], [], best)
    passing = np.flatnonzero(distribution >= threshold)
    if len(passing) > max_width:  # sorting the few that are needed is enough
        probabilities = distribution[passing]
        passing = passing[probabilities >= np.partition(probabilities, -max_width)[-max_width]]
    rank = np.lexsort((passing, passing != best, -distribution[passing]))
    order = passing[rank][:max_width].tolist()
    tokens = [token for token in order if token not in ends] or [best]
    return Chosen(tokens, [float(distribution[token]) for token in tokens])


Rows = NDArray[np.float32]  # float32[members, n_vocab]
Matrix = NDArray[np.bool_]  # bool[members, members]: whether the row's member sees the column's

MAX_REDONE_TOKENS = 64  # of sets that are computed again in one pass, about


@dataclass
class _Set:
    """A set, and all that has to be known to compute it again."""

    tokens: list[int]
    sees: Matrix | None  # None: all see all
    weights: list[float] | None  # of the mixture that follows it; None: the first member's follows
    pruned: list[Place] = field(default_factory=list)  # removed from the cache when it had been computed

    @property
    def order(self) -> list[int]:
        """The members in order of id: a view is kept so, and need not be sorted then."""
        return sorted(range(len(self.tokens)), key=self.tokens.__getitem__)

    def seers(self, member: int) -> list[int]:
        """The others who see a member."""
        if self.sees is None:
            return []
        return [i for i in range(len(self.tokens)) if self.sees[i, member] and i != member]


class SetSource:
    """Fills batches with the sets of a track. Rows stand in the order of the set's tokens."""

    def __init__(self, runner: Runner, track: Track) -> None:
        self.track = track
        self.step_tokens = 1
        self._runner = runner
        self._mixes = runner.backend if isinstance(runner.backend, Mixes) else None
        self._sets: list[_Set] = []  # all of them
        self._n_done = 0  # how many have been computed
        self._n_entered = 0  # how many are in the batch that is being computed
        self._lanes: list[int] = []
        self._batch: Batch | None = None  # the one that the last set was put into
        self._first = 0  # its first row there
        self._columns = slice(0, 0)  # of the probed cells there
        self.probed: list[Place] = []  # members whose attention from the next set is wanted
        self.watching: bool | Literal["mean"] = False  # whether the attention of sets is wanted, or its mean
        self._rows: Rows = np.empty((0, 0), np.float32)  # float32[members, n_vocab], as the model gave them
        self._order: list[int] = []  # the row of each member
        self._mixture: Mixture | None = None  # of the rows' distributions; None: the next ones have not come
        self._weights: list[float] = []  # of each member's distribution in the next one
        self._logits: Row | None = None  # that the next set is taken from, once they are asked for
        self._given: Row | None = None  # logits that the track came with: edited perhaps
        self.cells: list[int] = []  # of the last set's members
        self.received: Floats | None = None  # float32[members, probed]
        self.attention: Attention | None = None
        self.released = False  # it was preempted; members have other cells since
        self._n_given = len(track)
        self.is_exact = track.exact is None  # whether all can be computed again
        if track.logits is not None:
            self._given = track.host_logits()
            self.give(self._given[np.newaxis], [0])

    # -- what is pending --

    @property
    def n_pending(self) -> int:
        """How many tokens have no cell yet."""
        n = self.track.n_missing + sum([len(one.tokens) for one in self._sets[self._n_done :]])
        return max(0, n)

    @property
    def at_end(self) -> bool:
        """A set takes the long way, also if it has one member."""
        return self._n_done == len(self._sets) and self.track.at_end

    @property
    def has_logits(self) -> bool:
        """Whether the logits that the next set is taken from are there."""
        return self._mixture is not None

    @property
    def rows(self) -> Rows:
        """float32[members, n_vocab]: the logits after each member of the last set, as the model gave them."""
        return self._rows[self._order]

    @property
    def mixture(self) -> Mixture:
        """The distributions after the members of the last set; raises `InvalidRequest` if they are none."""
        mixture = self._mixture
        if mixture is None or mixture.error:
            raise InvalidRequest(NOT_FINITE)
        return mixture

    @property
    def weights(self) -> list[float]:
        """What each member's distribution counts for in the one that the next set is taken from."""
        return self._weights

    @property
    def logits(self) -> Row:
        """The logits that the next set is taken from, made when they are asked for: hooks may change them."""
        if self._logits is None:
            unmixed = self._weights[0] == 1.0
            first = self._rows[self._order[0]]
            self._logits = first.copy() if unmixed else mixed_row(self.rows, self._weights)
        return self._logits

    @property
    def position(self) -> int:
        """The position of the next set, or of the one that is to be computed: one more for each set."""
        return self.track.position

    def push(self, tokens: list[int], sees: Matrix | None, weights: list[float] | None = None) -> None:
        """Make these tokens, each another, the set that is computed next.

        `weights` are those of the mixture that is the next distribution; None: that of the first token.
        """
        self._sets.append(_Set(list(tokens), None if sees is None or sees.all() else sees, weights))
        self.step_tokens = len(tokens)
        self._drop_logits()

    # -- cells of members --

    def map_cells(self, position: int) -> dict[int, int]:
        """The cell of each token at a position."""
        table = self._runner.cells
        view = table.view(self.track.id)
        first, last = np.searchsorted(table.positions[view], (position, position + 1)).tolist()
        cells = view[first:last]
        return dict(zip(table.tokens[cells].tolist(), cells.tolist(), strict=True))

    def prune(self, members: list[Place]) -> int:
        """Remove members from the cache; return how many cells became free."""
        self._sets[-1].pruned = members
        return self._remove_members(members)

    def _remove_members(self, members: list[Place]) -> int:
        table, track = self._runner.cells, self.track
        cells = [self.map_cells(position)[token] for position, token in members]
        gone = np.isin(table.view(track.id), cells)
        track.tokens = [token for token, out in zip(track.tokens, gone, strict=True) if not out]
        return table.remove_cells(track.id, cells)

    def release(self) -> None:
        """Give the cells up: all sets are computed again, those before the first wide one as a prompt."""
        track = self.track
        self.drop_lanes()
        exact = len(track.tokens) if track.exact is None else track.exact
        again = max(0, min(exact - self._n_given, len(self._sets) - 1))
        self._runner.release(track)
        self._drop_logits()
        del track.tokens[self._n_given + again :]
        self._n_done = again
        self.step_tokens = len(self._sets[-1].tokens) if self._sets else 1
        self.released = True

    def close(self) -> None:
        """Close the track: what stands before its first set stays parked."""
        self.drop_lanes()
        self._runner.close_track(self.track)

    # -- batches --

    def redo_last(self) -> None:
        """Make logits again that an interrupted step has dropped: from the rows, where there are sets."""
        if self._sets:
            self._undo()
            if self._n_done == len(self._sets):
                self.forget_logits()
        else:
            self.track.redo_last()

    def forget_logits(self) -> None:
        """Undo what an interrupted hook may have changed: the rows are as they were."""
        self.give(self._rows, self._order)

    def fill(self, batch: Batch, most: int) -> int:
        """Put the next set into a batch; or a piece of the prompt, or some sets that are computed again."""
        self.drop_lanes()  # of an attempt that failed
        self._undo()
        self._n_entered = 0
        if self.track.n_missing:
            return self.track.fill(batch, most)
        sets = self._sets[self._n_done :]
        if len(sets) > 1:
            sets = _first_of(sets[:-1], min(most, MAX_REDONE_TOKENS))
            self._put(batch, sets, logits=False)
            return 0
        self._batch, self._first = batch, len(batch)
        self._put(batch, sets, logits=True)
        if self.probed:
            cells = [self.map_cells(position)[token] for position, token in self.probed]
            self._columns = batch.probe(cells)
        if self.watching:
            for row in range(self._first, len(batch)):
                batch.watch(row)
        return len(sets[0].tokens)

    def _put(self, batch: Batch, sets: list[_Set], logits: bool) -> None:
        """Put sets that follow each other into a batch. Each is in the lanes of all that come later."""
        position, self._n_entered = self.track.start, len(sets)
        lanes: list[list[int]] = []
        for one in sets:
            own = [] if one.sees is None else self._runner.borrowed.take_several(self, len(one.tokens))
            self._lanes += own
            self._runner.cells.copy_to_each(self.track.id, own)
            lanes.append(own)
        for at, one in enumerate(sets):
            later = [lane for several in lanes[at + 1 :] for lane in several]
            for i in one.order:
                own = [lanes[at][k] for k in (i, *one.seers(i))] if lanes[at] else []
                batch.add(one.tokens[i], position + at, (*own, self.track.id, *later), logits=logits)

    def take(self, rows: BackendRows) -> None:
        """Take the logits that `fill` asked for."""
        rows = host_rows(rows)
        if not self._n_entered:
            self._take_prompt(rows[0] if len(rows) else None)
            return
        track = self.track
        sets = self._sets[self._n_done : self._n_done + self._n_entered]
        last = len(rows) > 0
        if last:
            order = sets[0].order
            self._rows, self._order = rows, sorted(range(len(order)), key=order.__getitem__)
            self.look(self._order)
        wide = [at for at, one in enumerate(sets) if len(one.tokens) > 1]
        if wide and track.exact is None:
            track.exact = len(track.tokens) + wide[0]  # a prompt can share what stands before the first
        track.tokens += [token for one in sets for token in sorted(one.tokens)]
        self._n_done += len(sets)
        self.drop_lanes()
        if last:
            self.step_tokens = 1
            mixes = self._mixes
            mixture = None if mixes is None else mixes.mixture(self._rows, self._order)
            self.give(self._rows, self._order, mixture)
        elif sets[-1].pruned:
            self._remove_members(sets[-1].pruned)

    def take_row(self, row: Row | DeviceRow) -> None:
        """Take the logits behind the last token of the prompt."""
        self._take_prompt(host_row(row))

    def _take_prompt(self, row: Row | None) -> None:
        self.track.resume = None
        if row is None or self._n_done < len(self._sets):
            self._drop_logits()
        else:
            given = None if self._sets else self._given
            self.give((row if given is None else given)[np.newaxis], [0])

    def give(self, rows: Rows, order: list[int], mixture: Mixture | None = None) -> None:
        """Take the logits of a set, in which member i has row `order[i]`: the next one is taken from them.

        `mixture` is that of the rows, where it has been made.
        """
        weights = self._sets[-1].weights if self._sets else None
        self._rows, self._order, self._logits = rows, order, None
        self._weights = [1.0] + [0.0] * (len(order) - 1) if weights is None or len(order) == 1 else weights
        self.track.resume = None
        self._mixture = mixture or Mixture(rows, order)

    def _drop_logits(self) -> None:
        self._mixture = self._logits = self.track.logits = None

    def _undo(self) -> None:
        """Give back the cells of an interrupted pass."""
        extra = -self.track.n_missing
        if extra > 0:
            table = self._runner.cells
            table.remove_cells(self.track.id, table.view(self.track.id)[-extra:].tolist())

    def drop_lanes(self) -> None:
        """Give back the sequences that it borrowed for a pass."""
        if self._lanes:
            self._runner.borrowed.give_back(self, self._lanes)
            self._lanes = []

    def look(self, back: list[int]) -> None:
        """Keep the members' cells, and what the pass has told about attention; member i has row `back[i]`."""
        batch, self._batch = self._batch, None
        self.received = self.attention = None
        if batch is None or batch.placement is None:
            return
        mine = range(self._first, self._first + len(back))
        self.cells = [int(batch.placement.cells[self._first + row]) for row in back]
        if batch.received is not None and self.probed:
            self.received = batch.received[mine.start : mine.stop, self._columns][back]
        if not self.watching:
            return
        table, placement, spec = self._runner.cells, batch.placement, self._runner.spec
        view = table.view(self.track.id).copy()
        column = np.full(len(table), -1, np.intp)
        column[view] = np.arange(len(view))
        weights = np.zeros((spec.n_layer, spec.n_head, len(back), len(view)), np.float32)
        for at, row in enumerate(batch.watched):
            if row in mine:
                seen = placement.views[placement.view_of[row]][: placement.lengths[row]]
                weights[:, :, row - mine.start, column[seen]] = batch.attention[at]
        if self.watching == "mean":
            weights = weights.mean((0, 1), keepdims=True)
        self.attention = Attention(weights[:, :, back], view, table.positions[view], table.tokens[view])


def _first_of(sets: list[_Set], most: int) -> list[_Set]:
    """The first sets that one pass can take: about as many tokens, and none behind one that was pruned."""
    n = 0
    for at, one in enumerate(sets):
        n += len(one.tokens)
        if at and n > most:
            return sets[:at]
        if one.pruned:
            return sets[: at + 1]
    return sets
