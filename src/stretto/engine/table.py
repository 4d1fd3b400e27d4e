"""`llm.cells`: the table of cells in the caller's hands, by sequence id, and copies of it for those who look.

A `Sequence` whose cells are changed here takes note: its tokens are those that are left. Requests that run,
and parked sequences cannot be changed from here.

Nothing is recorded for readers: a copy is made when one asks for it, between two steps, and what is made of
it (sets of sequences, frames, JSON) is made without the engine's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stretto.backends.base import Batch
from stretto.cache.cells import CellChanges
from stretto.cache.checks import check_id, check_integers, check_range
from stretto.engine.engine import Engine
from stretto.engine.pool import FIRST_ID
from stretto.engine.runner import Runner
from stretto.errors import InvalidRequest

Ints = NDArray[np.int32]
SequenceState = Literal["running", "held", "parked", "pinned"]


@dataclass(frozen=True)
class TableCopy:
    """A table of cells as it was between two steps.

    A sequence is "running" for a request, "held" by a caller, or in the prefix cache: "parked" until its
    cells are needed, or "pinned".

    - `version`: of the table; another one if any cell has changed
    - `positions`, `tokens`: int32[n_cells], −1 in free cells
    - `views`: the cells of each sequence, in position order; `states` of the same sequences
    - `salts`: of the sequences that have one (`cache_salt`)
    - `slots`: those in use, if there are recurrent layers
    - `placeholder`: the token in the cells of images, if the model takes images
    """

    version: int
    positions: Ints
    tokens: Ints
    views: dict[int, Ints]
    states: dict[int, SequenceState]
    salts: dict[int, str]
    slots: list[dict[str, Any]] | None
    placeholder: int | None

    def as_data(self, is_shown: Callable[[int], bool] = lambda sequence: True) -> dict[str, Any]:
        """The cells in use, and the sequences with their cells; only of the sequences that are shown."""
        is_used = self.positions >= 0
        views = {i: view for i, view in self.views.items() if is_shown(i)}
        if len(views) < len(self.views):
            chosen = np.unique(np.concatenate([np.empty(0, np.int32), *views.values()]))
        else:
            chosen = np.flatnonzero(is_used)
        columns = zip(
            chosen.tolist(), self.positions[chosen].tolist(), self.tokens[chosen].tolist(), strict=True
        )
        found = {
            "cells": len(self.positions),
            "free": len(self.positions) - int(is_used.sum()),
            "used": [
                {"cell": cell, "position": position, "token": token} for cell, position, token in columns
            ],
            "sequences": [
                {"id": i, "state": self.states[i], "cells": view.tolist()} for i, view in views.items()
            ],
        }
        if self.slots is None:
            return found
        slots = [{**slot, "sequences": [i for i in slot["sequences"] if i in views]} for slot in self.slots]
        return {"slots": [slot for slot in slots if slot["sequences"]], **found}


@dataclass(frozen=True)
class CellCopy:
    """One cell: its position and token (−1 if it is free), its sequences' states, and salts as above."""

    position: int
    token: int
    states: dict[int, SequenceState]
    salts: dict[int, str]


class CellTable:
    """Cells by sequence id: `seq.id`, or ids below 1,000,000 of your own for batches made by hand.

    llm.cells.copy(seq.id, 7)               # sequence 7 shares all of seq's cells
    llm.cells.remove(7, 10, 20)             # and forgets positions 10 to 19
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._cells = engine.cells

    def __len__(self) -> int:
        return len(self._cells)

    def __repr__(self) -> str:
        return repr(self._cells)

    @property
    def n_free(self) -> int:
        """How many cells hold nothing."""
        return self._cells.n_free

    @property
    def n_used(self) -> int:
        """How many cells hold something, be it parked."""
        return self._cells.n_used

    @property
    def sequences(self) -> list[int]:
        """The ids of sequences that have cells and are not parked."""
        with self._engine.lock:
            return [i for i in self._cells.sequences if i not in self._engine.runner.prefixes]

    def view(self, sequence: int) -> Ints:
        """int32[n]: a sequence's cells in position order."""
        with self._engine.lock:
            return self._cells.view(sequence).copy()

    def positions(self, sequence: int) -> Ints:
        """int32[n]: the positions of those cells."""
        with self._engine.lock:
            return self._cells.sequence_positions(sequence)

    def tokens(self, sequence: int) -> Ints:
        """int32[n]: the tokens of those cells."""
        with self._engine.lock:
            return self._cells.tokens[self._cells.view(sequence)]

    def members(self, cell: int) -> set[int]:
        """The sequences that a cell belongs to."""
        with self._engine.lock:
            return self._cells.members(cell)

    def owned(self, salt: str) -> set[int]:
        """The sequences that have cells and were made with this `cache_salt`; "" is that of all others."""
        with self._engine.lock:
            salts = _salts(self._engine.runner)
            return {i for i in self._cells.sequences if salts.get(i, "") == salt}

    def snapshot(self, salt: str | None = None) -> dict[str, Any]:
        """The table as plain data: the cells in use with position and token, the sequences with their cells.

        A sequence is "running" for a request, "held" by a caller, or "parked" for prompts to come ("pinned"
        if it stays). With recurrent layers there are the slots in use too, with position and sequences. With
        a `salt` only the sequences that were made with it are shown, and their cells.
        """
        copied = self.copied()
        return copied.as_data() if salt is None else copied.as_data(lambda i: copied.salts.get(i, "") == salt)

    def changes(self, since: int = 0) -> CellChanges:
        """Columns of all cells in use, for a view that follows the table; none if it has not changed since.

        >>> seen = llm.cells.changes()
        >>> llm.cells.changes(seen.version).cells       # nothing, or the whole table again
        """
        with self._between_steps():
            return self._cells.changes(since)

    def copied(self, last: TableCopy | None = None) -> TableCopy:
        """A copy of the table, for a reader that goes on without the engine's lock; `last` if it is the same.

        It waits for the end of the step that is under way: call it in a thread of its own, not in an event
        loop.
        """
        with self._between_steps():
            runner, cells = self._engine.runner, self._cells
            states, salts = _states(runner), _salts(runner)
            if last is not None and (last.version, last.states, last.salts) == (cells.version, states, salts):
                return last
            return TableCopy(
                version=cells.version,
                positions=cells.positions.copy(),
                tokens=cells.tokens.copy(),
                views={i: view.cells.copy() for i, view in cells.views.items()},
                states=states,
                salts=salts,
                slots=None if cells.slots is None else cells.slots.as_data(),
                placeholder=None if runner.images is None else runner.images.placeholder,
            )

    def at(self, cell: int) -> CellCopy:
        """What is in a cell; it waits as `copied` does."""
        with self._between_steps():
            runner, cells = self._engine.runner, self._cells
            states = _states(runner)
            found = {i: states[i] for i in sorted(cells.members(cell))}
            return CellCopy(int(cells.positions[cell]), int(cells.tokens[cell]), found, _salts(runner))

    def check(self) -> None:
        """Raise `RuntimeError` if the table contradicts itself anywhere."""
        with self._engine.lock:
            self._engine.runner.tidy()
            self._cells.check()

    # -- changing --

    def copy(self, source: int, target: int, start: int = 0, stop: int | None = None) -> int:
        """Put the cells of `source` at start ≤ position < stop also into `target`; return how many."""
        check_range(start, stop)
        with self._engine.lock:
            self._compute(check_id(source))
            self._writable(target)
            self._check_not_replayed(
                [target], "copying cells into", "fork the sequence whose cells these are"
            )
            n = self._cells.copy(source, target, start, stop)
            self._changed(target, start)
            return n

    def remove(self, sequence: int, start: int = 0, stop: int | None = None) -> int:
        """Take a sequence out of its cells at start ≤ position < stop; return how many became free."""
        check_range(start, stop)
        with self._engine.lock:
            self._writable(sequence)
            self._check_replayable(sequence, start)
            n = self._cells.remove(sequence, start, stop)
            self._changed(sequence, start)
            return n

    def remove_cells(self, sequence: int, cells: ArrayLike) -> int:
        """Take a sequence out of these cells, which must be its own; return how many became free."""
        with self._engine.lock:
            self._writable(sequence)
            where = self._cells.positions[np.asarray(self._cells.view(sequence))]
            kept = max(0, len(where) - len(np.unique(check_integers(cells, "cells", 0))))
            self._check_replayable(sequence, kept)
            n = self._cells.remove_cells(sequence, cells)
            left = self._cells.sequence_positions(sequence)
            gone = where[~np.isin(where, left)]
            first = int(gone.min()) if len(gone) else 0
            self._changed(sequence, first if self._cells.slots is None else kept)
            return n

    def keep(self, sequence: int) -> int:
        """Remove all other sequences, parked ones too; return how many cells became free."""
        with self._engine.lock:
            return self._remove_all_but(check_id(sequence))

    def clear(self) -> None:
        """Remove all sequences; those of running requests and pinned ones stay."""
        with self._engine.lock:
            self._remove_all_but(None)

    # -- the lowest level --

    def forward(self, batch: Batch) -> NDArray[np.float32]:
        """Run a batch made by hand, in whatever sequences it names."""
        with self._engine.lock:
            touched = batch.first_positions()
            for sequence in touched:
                self._writable(sequence)
            if batch.vectors:
                self._check_not_replayed(touched, "vectors in", "append an image, or use an id of your own")
            rows = self._engine.runner.forward(batch)
            for sequence, position in touched.items():
                self._changed(sequence, position)
            return rows

    # -- within --

    @contextmanager
    def _between_steps(self) -> Iterator[None]:
        """The engine's lock, which a thread that steps hands over after its step."""
        with self._engine.arrivals.arriving(), self._engine.lock:
            yield

    def _remove_all_but(self, kept: int | None) -> int:
        before = self._cells.n_free
        self._engine.runner.tidy()
        for sequence in self.sequences:
            if sequence != kept and self._yours(sequence):
                self._cells.remove(sequence)  # pending tokens go too, without being computed
                self._changed(sequence, 0)
        self._engine.runner.prefixes.clear()
        return self._cells.n_free - before

    def _runs(self, sequence: int) -> bool:
        held = self._engine.runner.tracks.get(sequence)
        return held is not None and held.running

    def _yours(self, sequence: int) -> bool:
        held = self._engine.runner.tracks.get(sequence)
        return sequence < FIRST_ID if held is None else not held.running

    def _compute(self, sequence: int) -> None:
        held = self._engine.runner.tracks.get(sequence)
        if held is not None and not held.running:
            self._engine.compute([held])

    def _writable(self, sequence: int) -> None:
        sequence = check_id(sequence)
        if self._runs(sequence):
            raise InvalidRequest(f"sequence {sequence} belongs to a request that is running")
        if not self._yours(sequence):
            if sequence in self._engine.runner.prefixes:
                raise InvalidRequest(f"sequence {sequence} is closed; its cells are parked")
            raise InvalidRequest(
                f"sequence {sequence} is closed or never was; ids of your own lie below {FIRST_ID:,}"
            )
        self._compute(sequence)

    def _check_replayable(self, sequence: int, position: int) -> None:
        """Raise if recurrent layers cannot go back there: what was computed by hand is not replayed."""
        slots = self._cells.slots
        if slots is not None and sequence not in self._engine.runner.tracks:
            position = min(position, self._cells.end(sequence))
            if slots.nearest(sequence, position) != position:
                raise slots.unsupported(
                    f"going back to position {position} without a checkpoint there",
                    "remove all of the sequence and run its tokens again, or use llm.sequence",
                )

    def _check_not_replayed(self, sequences: Iterable[int], what: str, remedy: str) -> None:
        """Raise for what recurrent layers could not compute again from the tokens of a `Sequence`."""
        slots, tracks = self._cells.slots, self._engine.runner.tracks
        for sequence in sequences if slots is not None else ():
            if slots is not None and sequence in tracks:
                raise slots.unsupported(
                    f"{what} sequence {sequence}, which is replayed from its tokens,", remedy
                )

    def _changed(self, sequence: int, position: int) -> None:
        held = self._engine.runner.tracks.get(sequence)
        if held is not None:
            held.resync(position)


def _states(runner: Runner) -> dict[int, SequenceState]:
    """The states of all sequences that have cells."""
    states: dict[int, SequenceState] = dict.fromkeys(runner.cells.views, "held")
    for entry in runner.prefixes.entries():
        states[entry.id] = "pinned" if entry.pins else "parked"
    for track in runner.tracks.values():
        if track.running and track.id in states:
            states[track.id] = "running"
    return states


def _salts(runner: Runner) -> dict[int, str]:
    """The salts of all sequences that have one."""
    salts = {track.id: track.domain.salt for track in runner.tracks.values() if track.domain.salt}
    for entry in runner.prefixes.entries():
        if entry.domain.salt:
            salts[entry.id] = entry.domain.salt
    return salts
