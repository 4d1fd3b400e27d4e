"""A follower of a table of cells: copies what has changed since it last looked, in microseconds.

As `Cells.changes`, but it knows what it has copied, so that of a sequence that has grown at its end (nearly
all do), only the end is copied.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stretto.cache.cells import Cells

Ints = NDArray[np.int32]

NOTHING: Ints = np.empty(0, np.int32)


@dataclass(frozen=True)
class TableDelta:
    """What has changed in a table.

    - `complete`: all of it is here, and what was known before is to be forgotten
    - `cells`, `positions`, `tokens`: int32[n], of the cells that have changed; −1 in those that are free now
    - `grown`: sequences with more cells at their end (or the first ones), and how many; `ends` has these
      cells, one sequence's after the other's
    - `edited`: all cells of sequences that have changed otherwise; `removed`: sequences without cells
    """

    complete: bool
    cells: Ints
    positions: Ints
    tokens: Ints
    grown: dict[int, int]
    ends: Ints
    edited: dict[int, Ints]
    removed: list[int]

    def each_grown(self) -> dict[int, Ints]:
        """The cells of `ends` by sequence."""
        found, start = {}, 0
        for sequence, n in self.grown.items():
            found[sequence] = self.ends[start : start + n]
            start += n
        return found


class Follower:
    """The version of a table that was copied last, and how much of each sequence."""

    def __init__(self) -> None:
        self._version = 0
        self._known: dict[int, tuple[int, int]] = {}  # each sequence's edits and number of cells

    def take(self, cells: Cells) -> TableDelta:
        """Copy what has changed; nothing else may change the table meanwhile."""
        log, since = cells.log, self._version
        complete = not log.knows_since(since)
        if complete:
            self._known, since = {}, -1
        known, grown, ends, edited = self._known, {}, [NOTHING], {}
        for sequence, stamp in log.sequences.items():
            if stamp <= since:
                continue
            view = cells.views[sequence]
            edits, n = known.get(sequence, (view.edits, 0))
            if edits == view.edits:
                grown[sequence] = view.n - n
                ends.append(view.store[n : view.n])
            else:
                edited[sequence] = view.store[: view.n].copy()
            known[sequence] = (view.edits, view.n)
        removed = list(known.keys() - cells.views.keys())
        for sequence in removed:
            del known[sequence]
        self._version = log.version
        joined = np.concatenate(ends)
        if complete:
            chosen = np.flatnonzero(cells.shares).astype(np.int32)
        elif edited or removed:
            chosen = np.flatnonzero(log.cells > since).astype(np.int32)
        else:  # faster than looking at all cells
            chosen = np.unique(joined)
        return TableDelta(
            complete=complete,
            cells=chosen,
            positions=cells.positions[chosen],
            tokens=cells.tokens[chosen],
            grown=grown,
            ends=joined,
            edited=edited,
            removed=removed,
        )
