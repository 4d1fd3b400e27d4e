"""Which of the engine's cells are in which of llama.cpp's sequences.

The engine hands over views: lists of cells. llama.cpp has sequences of its own, and shares K and V between
those that were copied. So a view is brought into one of its sequences before its next tokens run there:

- one that holds just these cells is used as it is, which is the usual case;
- one that holds more is cut, if nobody needs the rest, or else copied (`seq_cp`), as after a fork;
- cells that llama.cpp has lost (it has fewer sequences than the engine may park) are computed again.

Each write of a cell has a serial number: a cell that was freed and written again is another one. A cell also
knows the one before it in its view, so that only texts whose K and V would be the same are computed again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from stretto.errors import Unsupported

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]

NONE = np.empty((3, 0), np.int64)
CELLS, SERIALS, POSITIONS = 0, 1, 2  # rows of `Held.data`


class Memory(Protocol):
    """llama.cpp's cache by sequence."""

    is_recurrent: bool
    n_sequences: int

    def copy(self, source: int, target: int, start: int, stop: int) -> None:
        """Let `target` share the tokens of `source` at start ≤ position < stop."""
        ...

    def remove(self, sequence: int, start: int = 0, stop: int = -1) -> bool:
        """Take tokens out of a sequence; False if that cannot be."""
        ...


@dataclass
class Held:
    """The content of one of llama.cpp's sequences, in position order."""

    data: Longs = field(default_factory=lambda: NONE)  # int64[3, n]: cells, serials, positions
    used: int = 0  # the turn in which it was used last

    @property
    def serials(self) -> Longs:
        """int64[n]."""
        row: Longs = self.data[SERIALS]
        return row


@dataclass(frozen=True)
class Lost:
    """The cells of a view that llama.cpp does not hold: to be computed again, in order."""

    sequence: int
    cells: Ints


class LlamaCells:
    """The content of all of llama.cpp's sequences."""

    def __init__(self, memory: Memory, n_cells: int) -> None:
        self._memory = memory
        self._held: dict[int, Held] = {}
        self._serial = np.zeros(n_cells, np.int64)  # of the last write of each cell; 0: never
        self._before = np.zeros(n_cells, np.int64)  # the serial before it in its view; 0: it is the first
        self._next = 1
        self._turn = 0
        self._busy: set[int] = set()  # sequences of the pass that is being prepared
        self.tokens = np.zeros(n_cells, np.int32)
        self.positions = np.zeros(n_cells, np.int32)

    def place(self, cells: Ints) -> None:
        """Note that cells are about to be written: whatever they held is gone."""
        self._serial[cells] = 0

    def begin(self) -> None:
        """Begin a pass: sequences that are brought from here on stay until it ends."""
        self._turn += 1
        self._busy.clear()

    def bring(self, view: Ints, table: Ints) -> tuple[int, Lost | None]:
        """A sequence that holds the cells of a view, and what of them has to be computed again."""
        wanted = self._serial[view]
        exact = self._exact(wanted)
        if exact is not None:
            self._held[exact].used = self._turn
            self._busy.add(exact)
            return exact, None
        sequence = self._take(self._best(wanted), wanted, table)
        held = self._held[sequence]
        held.used = self._turn
        self._busy.add(sequence)
        lost = ~np.isin(wanted, held.serials)
        if not lost.any():
            return sequence, None
        if not self._memory.is_recurrent:
            self._gather(sequence, view, wanted, lost)
            lost = ~np.isin(wanted, held.serials)
            if not lost.any():
                return sequence, None
        first = int(np.flatnonzero(lost)[0])
        self._check_replay(view, wanted)
        self._cut(sequence, first)
        return sequence, Lost(sequence, view[first:])

    def write(self, sequence: int, cells: Ints, tokens: Ints, positions: Ints) -> None:
        """Note that cells were computed behind what a sequence holds."""
        held, n = self._held[sequence], len(cells)
        serials = np.arange(self._next, self._next + n)
        self._next += n
        last = held.serials[-1] if held.data.shape[1] else 0
        self._serial[cells] = serials
        self._before[cells] = np.concatenate(([last], serials[:-1]))
        self.tokens[cells], self.positions[cells] = tokens, positions
        held.data = np.concatenate((held.data, np.stack((cells, serials, positions))), axis=1)

    def restore(self, sequence: int, cells: Ints) -> None:
        """Note that lost cells were computed again: they are what they were."""
        held = self._held[sequence]
        again = np.stack((cells, self._serial[cells], self.positions[cells]))
        held.data = np.concatenate((held.data, again.astype(np.int64)), axis=1)

    def forget(self, sequence: int) -> None:
        """Empty a sequence, as after a failure."""
        self._memory.remove(sequence)
        self._held.pop(sequence, None)

    def purge(self, table: Ints) -> None:
        """Remove what the engine has freed; `table` has the position of every cell, −1 for free ones."""
        for sequence in [each for each in self._held if each not in self._busy]:
            held = self._held[sequence]
            dead = ~self._alive(held, table)
            if dead.all():
                self.forget(sequence)
            elif dead.any() and not self._memory.is_recurrent:
                self._drop(sequence, dead)

    def evict_idle(self) -> bool:
        """Empty all sequences that the current pass does not use; return whether there were any."""
        idle = [sequence for sequence in self._held if sequence not in self._busy]
        for sequence in idle:
            self.forget(sequence)
        return bool(idle)

    # -- within --

    def _exact(self, wanted: Longs) -> int | None:
        """A sequence that holds a view and nothing else: what a generating sequence finds in every step."""
        for sequence, held in self._held.items():
            if sequence not in self._busy and np.array_equal(held.serials, wanted):
                return sequence
        return None

    def _best(self, wanted: Longs) -> int | None:
        """The sequence that holds most of a view; of a recurrent model, that is at one of its prefixes."""
        best, most = None, 0
        for sequence, held in self._held.items() if len(wanted) else ():
            serials = held.serials
            if self._memory.is_recurrent:
                is_prefix = len(serials) <= len(wanted) and np.array_equal(serials, wanted[: len(serials)])
                n = len(serials) if is_prefix else 0
            else:
                n = int(np.isin(wanted, serials).sum())
            if n > most:
                best, most = sequence, n
        return best

    def _take(self, source: int | None, wanted: Longs, table: Ints) -> int:
        """A sequence for a view: the source itself if nobody else needs what it has more, or a new one."""
        if source is None:
            return self._new()
        held = self._held[source]
        extra = ~np.isin(held.serials, wanted)
        if source not in self._busy and not (extra & self._alive(held, table)).any():
            if extra.any():
                self._drop(source, extra)
            return source
        sequence = self._new(keep=source)
        self._share(source, sequence, np.isin(held.serials, wanted))
        return sequence

    def _gather(self, sequence: int, view: Ints, wanted: Longs, lost: NDArray[np.bool_]) -> None:
        """Share missing cells of a view with whatever other sequence holds them."""
        for other, held in list(self._held.items()):
            if other == sequence or not lost.any():
                continue
            mine = np.isin(held.serials, wanted[lost])
            if mine.any():
                self._share(other, sequence, mine)
                lost &= ~np.isin(wanted, held.serials)

    def _share(self, source: int, target: int, chosen: NDArray[np.bool_]) -> None:
        data = self._held[source].data[:, chosen]
        if self._memory.is_recurrent:
            self._memory.copy(source, target, -1, -1)
        else:
            for start, stop in _runs(data[POSITIONS]):
                self._memory.copy(source, target, start, stop)
        held = self._held[target]
        joined = np.concatenate((held.data, data), axis=1)
        held.data = joined[:, np.argsort(joined[POSITIONS], kind="stable")]

    def _drop(self, sequence: int, chosen: NDArray[np.bool_]) -> None:
        held = self._held[sequence]
        for start, stop in _runs(held.data[POSITIONS, chosen]):
            self._memory.remove(sequence, start, stop)
        held.data = held.data[:, ~chosen]

    def _cut(self, sequence: int, n: int) -> None:
        """Keep the first n cells of a view that a sequence holds in part."""
        held = self._held[sequence]
        gone = np.arange(held.data.shape[1]) >= n
        if gone.any():
            self._drop(sequence, gone)

    def _check_replay(self, view: Ints, wanted: Longs) -> None:
        """Raise unless computing the tokens of a view in order gives the K and V that they had."""
        chain = np.concatenate(([0], wanted[:-1]))
        if not np.array_equal(self._before[view], chain):
            raise Unsupported(
                "llama.cpp has lost cells of a sequence that was edited, and cannot compute them again; keep "
                "fewer sequences, or use backend='native'"
            )

    def _new(self, keep: int | None = None) -> int:
        """An empty sequence; if all are in use, the one that was used longest ago is emptied."""
        free = next((i for i in range(self._memory.n_sequences) if i not in self._held), None)
        if free is None:
            idle = [i for i in self._held if i not in self._busy and i != keep]
            if not idle:
                raise Unsupported(
                    f"llama.cpp computes at most {self._memory.n_sequences} sequences of this model at once"
                )
            free = min(idle, key=lambda i: (not self._is_redundant(i), self._held[i].used))
            self.forget(free)
        self._memory.remove(free)
        self._held[free] = Held(used=self._turn)
        return free

    def _is_redundant(self, sequence: int) -> bool:
        """Whether other sequences hold all its cells."""
        serials = self._held[sequence].serials
        others = [held.serials for i, held in self._held.items() if i != sequence]
        return bool(np.isin(serials, np.concatenate(others)).all()) if others else False

    def _alive(self, held: Held, table: Ints) -> NDArray[np.bool_]:
        cells, serials, _ = held.data
        result: NDArray[np.bool_] = (table[cells] >= 0) & (self._serial[cells] == serials)
        return result


def _runs(positions: Longs) -> list[tuple[int, int]]:
    """Positions in order as half-open ranges.

    >>> _runs(np.array([3, 4, 5, 9]))
    [(3, 6), (9, 10)]
    """
    if not len(positions):
        return []
    breaks = np.flatnonzero(np.diff(positions) != 1) + 1
    return [(int(part[0]), int(part[-1]) + 1) for part in np.split(positions, breaks)]
