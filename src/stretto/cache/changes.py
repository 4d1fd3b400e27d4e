"""Changes of a table of cells since a version: for a page that shows it while the engine runs.

Every change of the table raises its version and stamps the cells and sequences it touched, so a reader gets
columns of just those, copied in microseconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stretto.cache.views import View

Ints = NDArray[np.int32]

MAX_REMOVED_SEQUENCES = 4096  # remembered after their last cell has gone


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


class ChangeLog:
    """The stamps of a table: when each cell and each sequence changed last."""

    def __init__(self, n_cells: int) -> None:
        self.version = 0
        self.cells = np.zeros(n_cells, np.int64)  # the version of each cell's last change
        self.sequences: dict[int, int] = {}
        self._removed: deque[tuple[int, int]] = deque()  # (version, sequence)
        self._forgotten = 0  # changes up to this version are not known completely

    def touch(self, sequence: int, cells: Ints | NDArray[np.intp] | list[int] | int) -> None:
        """Note that cells of a sequence have changed."""
        self.version = version = self.version + 1
        self.cells[cells] = version
        self.sequences[sequence] = version

    def touch_each(self, sequences: Iterable[int], cells: NDArray[np.intp]) -> None:
        """Note that cells of several sequences have changed, all at once."""
        self.version = version = self.version + 1
        self.cells[cells] = version
        for sequence in sequences:
            self.sequences[sequence] = version

    def remove(self, sequence: int) -> None:
        """Note that a sequence has no cells any more."""
        self.sequences.pop(sequence, None)
        self._removed.append((self.version, sequence))
        if len(self._removed) > MAX_REMOVED_SEQUENCES:
            self._forgotten, _ = self._removed.popleft()

    def forget(self, sequences: Iterable[int]) -> None:
        """Note that anything may have changed: readers get all of the table, with these sequences."""
        self.version = self._forgotten = version = self.version + 1
        self.cells[:] = version
        self.sequences = dict.fromkeys(sequences, version)
        self._removed.clear()

    def since(
        self, version: int, positions: Ints, tokens: Ints, shares: Ints, views: Mapping[int, View]
    ) -> CellChanges:
        """The changes of a table after a version; all cells in use if they are not known."""
        complete = not self.knows_since(version)
        chosen = np.flatnonzero(shares if complete else self.cells > version).astype(np.int32)
        return CellChanges(
            version=self.version,
            complete=complete,
            cells=chosen,
            positions=positions[chosen],
            tokens=tokens[chosen],
            shares=shares[chosen],
            sequences={
                sequence: view.cells.copy()
                for sequence, view in views.items()
                if complete or self.sequences[sequence] > version
            },
            removed=[] if complete else self._removed_since(version),
        )

    def knows_since(self, since: int) -> bool:
        """Whether all changes since a version are known."""
        return self._forgotten <= since <= self.version and since > 0

    def _removed_since(self, since: int) -> list[int]:
        """Sequences that have lost their last cell, and not got another one."""
        removed = {sequence for version, sequence in self._removed if version > since}
        return sorted(removed - self.sequences.keys())
