"""The table of cells: for each cell its position, its token, and the sequences that share it.

    cells = Cells(8192)
    cells.place([token], [0], [(7,)])       # one cell at position 0, in sequence 7
    cells.copy(7, 8)                        # sequence 8 now shares all of 7's cells; no tensor moves
    cells.remove(8, 10, 20)                 # 8 forgets positions 10 to 19; 7 keeps them
    cells.view(7)                           # indices of 7's cells, in position order

Ranges are half-open and of positions. A sequence exists while it has cells. A cell whose set is empty is
free. The table defines the attention mask: a token attends to the cells of its sequence with positions up to
its own, so the backend gets a *view* (the sequence's cells in position order, within one position in order of
token) and how many of them. Every operation updates the views.

An edit that an exception interrupts, wherever that is, is undone before the next one (cache/state.py).

With recurrent layers there are `slots` too, and a sequence's cells end where its state stands: removing its
end takes it back to its last checkpoint, with its cells; copies end at one; other edits are `Unsupported`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stretto.cache.checks import MAX_POSITION, check_id, check_integers, check_members, check_range
from stretto.cache.state import CellState
from stretto.cache.views import View, follow_up_each
from stretto.errors import InvalidRequest, wrong_value

Ints = NDArray[np.int32]

FEW_CELLS = 8


@dataclass(frozen=True)
class CellChanges:
    """Columns of the cells that changed after a version, and the sequences that did.

    - `version`: of the table now; ask for the changes since it the next time
    - `complete`: the columns are all cells in use, not only changes: discard earlier state
    - `cells`, `positions`, `tokens`, `shares`: int32[n]; position and token are −1 in cells that became free
    - `sequences`: the cells of each sequence that changed, in position order
    - `removed`: sequences that have no cells any more
    """

    version: int
    complete: bool
    cells: Ints
    positions: Ints
    tokens: Ints
    shares: Ints
    sequences: dict[int, Ints]
    removed: list[int]


class Cells(CellState):
    """A fixed number of cells and the sequences that use them.

    `positions` and `tokens` have an entry for every cell (−1 where it is free), as has `shares`: the number
    of sequences that the cell belongs to.
    """

    def __len__(self) -> int:
        return self.n_cells

    def __repr__(self) -> str:
        return f"<Cells: {self.n_used} of {self.n_cells} used by {len(self.views)} sequences>"

    @property
    def n_free(self) -> int:
        """How many cells are free."""
        return len(self._free)

    @property
    def n_used(self) -> int:
        """How many cells belong to at least one sequence."""
        return self.n_cells - len(self._free)

    @property
    def sequences(self) -> list[int]:
        """The ids of the sequences that have cells."""
        return list(self.views)

    # -- reading --

    def view(self, sequence: int) -> Ints:
        """int32[n]: the sequence's cells in position order; read-only, valid until the next change."""
        view = self.views.get(check_id(sequence))
        return np.empty(0, np.int32) if view is None else view.cells

    def sequence_positions(self, sequence: int) -> Ints:
        """int32[n]: the positions of `view(sequence)`."""
        return self.positions[self.view(sequence)]

    def edits(self, sequence: int) -> int:
        """The number of the last edit of the sequence's view (cache/views.py), 0 for one without cells."""
        view = self.views.get(check_id(sequence))
        return 0 if view is None else view.edits

    def count(self, sequence: int) -> int:
        """How many cells the sequence has."""
        view = self.views.get(check_id(sequence))
        return 0 if view is None else view.n

    def end(self, sequence: int) -> int:
        """The position after the sequence's last, 0 for one without cells."""
        view = self.views.get(check_id(sequence))
        return 0 if view is None else view.last[0] + 1

    def members(self, cell: int) -> set[int]:
        """The sequences that a cell belongs to."""
        (chosen,) = self._cells([cell])
        return {sequence for sequence, view in self.views.items() if (view.cells == chosen).any()}

    def is_shared(self, cells: ArrayLike) -> NDArray[np.bool_]:
        """For each cell, whether more than one sequence uses it."""
        return self.shares[self._cells(cells)] > 1

    def count_shared(self, sequence: int, start: int = 0, stop: int | None = None) -> int:
        """How many of the sequence's cells at start ≤ p < stop others use too."""
        return int((self.shares[self._range(sequence, start, stop)] > 1).sum())

    def changes(self, since: int = 0) -> CellChanges:
        """Columns of all cells in use; none if the table still has the version that it had."""
        complete = since != self.version or not since
        cells = np.flatnonzero(self.shares if complete else ()).astype(np.int32)
        return CellChanges(
            version=self.version,
            complete=complete,
            cells=cells,
            positions=self.positions[cells],
            tokens=self.tokens[cells],
            shares=self.shares[cells],
            sequences={i: view.cells.copy() for i, view in self.views.items()} if complete else {},
            removed=[],
        )

    # -- changing --

    def place(self, tokens: ArrayLike, positions: ArrayLike, sequences: Sequence[Collection[int]]) -> Ints:
        """Take a free cell for each token and put it into its set of sequences; return the cells.

        All or nothing: without enough free cells nothing changes and `CacheFull` is raised.
        """
        self._recover()
        ids, places = check_integers(tokens, "tokens", -1), check_integers(positions, "positions", 0)
        n = len(ids)
        if len(places) != n or len(sequences) != n:
            raise InvalidRequest(
                f"{n} tokens, {len(places)} positions and {len(sequences)} sets of sequences"
            )
        known: dict[tuple[int, ...], list[int]] = {}
        sets = [known.get(key) or known.setdefault(key, check_members(key)) for key in map(tuple, sequences)]
        first, edit = min(places, default=0), self._begin()
        for members in known.values():
            for sequence in members:
                view = self.views.get(sequence)
                edit.note(sequence, view, view is not None and view.last[0] >= first)
        self._edit = edit
        taken = self._free.take(n)
        cells = np.array(taken, np.int32)
        if n <= FEW_CELLS:  # for a few, going through them is faster than three indexed stores
            for cell, position, token, members in zip(taken, places, ids, sets, strict=True):
                self.positions[cell] = position
                self.tokens[cell] = token
                self.shares[cell] = len(members)
        else:
            self.positions[cells] = places
            self.tokens[cells] = ids
            self.shares[cells] = [len(members) for members in sets]
        # Rows come in runs of one set: a prompt is a long one, a decoding sequence a single row.
        start = 0
        while start < n:
            stop = start + 1
            while stop < n and sets[stop] is sets[start]:
                stop += 1
            for sequence in sets[start]:
                view = self._view(sequence)
                if stop - start == 1:
                    view.append(taken[start], places[start], ids[start], self.positions, self.tokens)
                else:
                    view.extend(cells[start:stop], self.positions, self.tokens)
            start = stop
        self._end()
        return cells

    def append(
        self, tokens: list[int], sequences: list[int]
    ) -> tuple[list[int], list[int], list[Ints], list[int], list[int]]:
        """Append one cell to each sequence: a decode step, without checks.

        As `place`, all or nothing; returns the cells, their positions, and of each sequence's view the array,
        how many of its entries are valid, and the number of its last edit.
        """
        edit = self._begin()
        edit.note_appended(sequences, [self.views.get(sequence) for sequence in sequences])
        self._edit = edit
        taken = self._free.take(len(tokens))
        if len(taken) > FEW_CELLS:
            views = [self.views.get(sequence) or self._view(sequence) for sequence in sequences]
            places = follow_up_each(views, taken, tokens)
            cells = np.array(taken)
            self.positions[cells], self.tokens[cells], self.shares[cells] = places, tokens, 1
            stores, counts = [view.store for view in views], [view.n for view in views]
            self._end()
            return taken, places, stores, counts, [view.edits for view in views]
        places, stores, counts, edits = [], [], [], []
        for cell, token, sequence in zip(taken, tokens, sequences, strict=True):
            view = self.views.get(sequence)
            if view is None:
                view = self.views[sequence] = View()
            position = view.follow_up(cell, token)
            self.positions[cell] = position
            self.tokens[cell] = token
            self.shares[cell] = 1
            places.append(position)
            stores.append(view.store)
            counts.append(view.n)
            edits.append(view.edits)
        self._end()
        return taken, places, stores, counts, edits

    def reserve(self, sequence: int, n: int) -> Ints:
        """Append cells for tokens that are not known yet; `name` sets them. As `place`, all or nothing."""
        edit = self._begin()
        edit.note_appended([sequence], [self.views.get(sequence)])
        self._edit = edit
        taken, view = self._free.take(n), self._view(sequence)
        if self.lags is not None:
            self.lags[taken] = self.lags[view.cells[-1]] if view else 0
        for cell in taken:  # they are few: indexed stores take longer
            self.positions[cell] = view.follow_up(cell, 0)
            self.tokens[cell] = 0
            self.shares[cell] = 1
        self._end()
        return np.array(taken, np.int32)

    def name(self, sequence: int, cells: Ints, tokens: list[int]) -> None:
        """Set the tokens of the first of the cells that were reserved last."""
        self._recover()
        view, edit = self.views[sequence], self._begin()
        edit.note_columns(cells, self.positions, self.tokens)
        self._edit = edit
        for cell, token in zip(cells.tolist(), tokens, strict=False):
            self.tokens[cell] = token
        if len(tokens) == len(cells):
            view.last = (view.last[0], tokens[-1])
        self._end()

    def name_each(self, sequences: list[int], cells: list[int], tokens: list[int]) -> None:
        """Set the tokens of the last cells of several sequences, which `append` was not told."""
        self._recover()
        edit, each = self._begin(), np.array(cells)
        edit.note_columns(each, self.positions, self.tokens)
        self._edit = edit
        self.tokens[each] = tokens
        for sequence, token in zip(sequences, tokens, strict=True):
            view = self.views[sequence]
            view.last = (view.last[0], token)
        self._end()

    def copy(self, source: int, target: int, start: int = 0, stop: int | None = None) -> int:
        """Put the cells of `source` at positions start ≤ p < stop also into `target`; return how many."""
        self._recover()
        chosen = self._range(source, start, stop)
        if check_id(source) == check_id(target):
            return len(chosen)
        edit = self._begin()
        edit.note(target, self.views.get(target))
        if self.slots is not None and len(chosen):
            end = self.end(source) if stop is None else min(stop, self.end(source))
            self.slots.check_copy(source, start, end, target in self.views)
            self._edit = edit
            self.slots.copy(source, target, end)
        held = self.views.get(target)
        if held:
            chosen = chosen[~np.isin(chosen, held.cells)]
        if len(chosen):
            self._edit = edit
            if not held and len(chosen) == self.views[source].n:
                self._copy_whole(self.views[source], (target,))
            else:
                index = chosen.astype(np.intp)  # converted once, not by each of those who use it
                self.shares[index] += 1
                self._view(target).extend(chosen, self.positions, self.tokens)
        self._end()
        return len(chosen)

    def copy_to_each(self, source: int, targets: Sequence[int]) -> None:
        """`copy` of a whole sequence to several others, in one go if they have no cells.

        1,000 cells for 32 others take a quarter of the time that 32 calls of `copy` take.
        """
        self._recover()
        view = self.views.get(check_id(source))
        are_new = len(set(targets)) == len(targets) and self.views.keys().isdisjoint(targets)
        if view is None or self.slots is not None or not are_new:
            for target in targets:
                self.copy(source, target)
            return
        edit = self._begin()
        for target in targets:
            edit.note(check_id(target), None)
        self._edit = edit
        self._copy_whole(view, targets)
        self._end()

    def remove(self, sequence: int, start: int = 0, stop: int | None = None) -> int:
        """Take the sequence out of its cells at start ≤ p < stop; return how many cells became free."""
        self._recover()
        chosen = self._range(sequence, start, stop)
        self._check_tail(sequence, chosen)
        return self._drop(sequence, chosen)

    def remove_each(self, sequences: Sequence[int]) -> None:
        """`remove` of several whole sequences, in one go.

        32 sequences that share 1,000 cells take three fifths of the time that 32 calls of `remove` take.
        """
        if self.slots is not None:
            for sequence in sequences:
                self.remove(sequence)
            return
        edit = self._begin()
        gone = {number: self.views[number] for number in map(check_id, sequences) if number in self.views}
        if not gone:
            return
        for sequence, view in gone.items():
            edit.note(sequence, view, is_copied=False)
        cells = np.concatenate([view.cells for view in gone.values()]).astype(np.intp)
        self._edit = edit
        start = 0
        for sequence, view in gone.items():
            del self.views[sequence]
            self.shares[cells[start : start + view.n]] -= 1
            start += view.n
        unused = cells[self.shares[cells] == 0]
        if len(unused):
            freed = np.unique(unused).astype(np.int32)
            edit.note_columns(freed, self.positions, self.tokens)
            self._give_back(freed)
        self._end()

    def remove_cells(self, sequence: int, cells: ArrayLike) -> int:
        """Take the sequence out of these cells, which must be its own; return how many became free."""
        self._recover()
        chosen = np.unique(self._cells(cells))
        foreign = chosen[~np.isin(chosen, self.view(sequence))]
        if len(foreign):
            raise InvalidRequest(f"cells {foreign[:8].tolist()} do not belong to sequence {sequence}")
        self._check_tail(sequence, chosen)
        return self._drop(sequence, chosen)

    def rewind(self, sequence: int, position: int) -> None:
        """Take a sequence back to its last state at or before a position; cells behind that go."""
        assert self.slots is not None
        with self._held():
            self._note(sequence)
            self.slots.cut(sequence, position)
            self._drop(sequence, self._range(sequence, self.slots.position(sequence), None))

    def keep(self, sequence: int) -> int:
        """Remove all other sequences; return how many cells became free."""
        return sum(self.remove(other) for other in self.sequences if other != check_id(sequence))

    def clear(self) -> None:
        """Remove all sequences."""
        for sequence in self.sequences:
            self.remove(sequence)

    def shift(self, sequence: int, start: int, stop: int | None, delta: int) -> Ints:
        """Move the sequence's cells at start ≤ p < stop by `delta` positions; return those cells.

        Their keys must then be rotated by `delta`. A cell has one position for all sequences that share it,
        so shared cells are refused: give the sequence cells of its own first (`unshare`).
        """
        self._recover()
        chosen = self._range(sequence, start, stop).copy()
        if isinstance(delta, bool) or not isinstance(delta, (int, np.integer)):
            raise wrong_value("delta", delta, "an integer")
        if not len(chosen) or delta == 0:
            return chosen[:0]
        if self.slots is not None:
            raise self.slots.unsupported("moving tokens", "compute the text anew")
        moved = self.positions[chosen].astype(np.int64) + delta
        if moved.min() < 0 or moved.max() > MAX_POSITION:
            raise InvalidRequest(
                f"a shift by {delta} would give positions from {moved.min()} to {moved.max()}",
                param="delta",
                value=delta,
            )
        if (self.shares[chosen] > 1).any():
            raise InvalidRequest(f"cells of sequence {sequence} in this range are shared; unshare them first")
        edit, view = self._begin(), self.views[sequence]
        edit.note(sequence, view)
        edit.note_columns(chosen, self.positions, self.tokens)
        self._edit = edit
        self.positions[chosen] = moved
        view.sort(self.positions, self.tokens)
        self._end()
        return chosen

    def unshare(self, sequence: int, start: int = 0, stop: int | None = None) -> tuple[Ints, Ints]:
        """Give the sequence cells of its own where it shares; return (old, new): K and V must be copied."""
        with self._held():
            chosen = self._range(sequence, start, stop)
            old = chosen[self.shares[chosen] > 1].copy()
            new = self.place(self.tokens[old], self.positions[old], [(sequence,)] * len(old))
            if self.lags is not None:
                self.lags[new] = self.lags[old]
            self._drop(sequence, old)
        return old, new

    # -- within --

    def _view(self, sequence: int) -> View:
        view = self.views.get(sequence)
        if view is None:
            view = self.views[sequence] = View()
        return view

    def _copy_whole(self, view: View, targets: Sequence[int]) -> None:
        """Put all cells of a view also into sequences that have none."""
        index = view.cells.astype(np.intp)  # converted once, not by each of those who use it
        self.shares[index] += len(targets)
        for target in targets:
            self.views[target] = view.copy()

    def _drop(self, sequence: int, cells: Ints) -> int:
        """Take cells out of a view, and with recurrent layers those that no state is left for."""
        if self.slots is None or not len(cells):
            return self._drop_cells(sequence, cells)
        with self._held():
            n_freed = self._drop_cells(sequence, cells)
            self.slots.cut(sequence, self.end(sequence))
            if self.slots.position(sequence) < self.end(sequence):
                n_freed += self._drop(sequence, self._range(sequence, self.slots.position(sequence), None))
        return n_freed

    def _drop_cells(self, sequence: int, cells: Ints) -> int:
        if not len(cells):
            return 0
        view, edit = self.views[sequence], self._begin()
        is_whole = len(cells) == view.n
        if is_whole:  # the view stays as it is, for an edit that is undone
            cells = view.cells
            edit.note(sequence, view, is_copied=False)
        else:
            cells = cells.copy()  # it may be a part of the view that is about to change
            is_tail = np.array_equal(cells, view.store[view.n - len(cells) : view.n])
            edit.note(sequence, view, not is_tail)
        index = cells.astype(np.intp)  # converted once, not by each of those who use it
        shares = self.shares[index]
        freed = cells[shares == 1]
        if len(freed):
            edit.note_columns(freed, self.positions, self.tokens)
        self._edit = edit
        if is_whole:
            del self.views[sequence]
        else:
            view.drop(cells, self.positions, self.tokens)
        self.shares[index] = shares - 1
        if len(freed):
            self._give_back(freed)
        self._end()
        return len(freed)

    def _give_back(self, cells: Ints) -> None:
        """Have cells free that no sequence has any more."""
        self.positions[cells] = -1
        self.tokens[cells] = -1
        self._free.give_back(cells)

    def _check_tail(self, sequence: int, cells: Ints) -> None:
        """With recurrent layers only the end of a sequence can be removed."""
        if self.slots is not None and len(cells):
            view = self.view(sequence)
            self.slots.check_removal(bool(np.isin(view[len(view) - len(cells) :], cells).all()))

    def _range(self, sequence: int, start: int, stop: int | None) -> Ints:
        """The contiguous part of a sequence's view with positions in a range."""
        check_range(start, stop)
        view = self.views.get(check_id(sequence))
        if view is None:
            return np.empty(0, np.int32)
        first = view.index(start, self.positions) if start else 0
        last = len(view) if stop is None else view.index(stop, self.positions)
        return view.cells[first:last]

    def _cells(self, cells: ArrayLike) -> Ints:
        chosen = np.array(check_integers(cells, "cells", 0), np.int32)
        if len(chosen) and chosen.max() >= self.n_cells:
            raise InvalidRequest(f"cell {chosen.max()} does not exist; there are {self.n_cells}")
        return chosen
