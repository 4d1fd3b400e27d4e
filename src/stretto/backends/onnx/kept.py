"""K and V of sequences as the last call of the graph left them, so that a plain continuation gathers nothing.

A `Kept` holds the present tensors of one call. New K and V stay in it until somebody needs them elsewhere
(`Presents.sync` writes them to the pool): a sequence that only grows never touches the pool. A cell that has
been written since makes a `Kept` useless from there on; stamps tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.backends.onnx.plan import Chain
from stretto.backends.onnx.pool import HeadPool

Ints = NDArray[np.int32]
TYPES = {"tensor(float)": "<f4", "tensor(float16)": "<f2"}  # of K and V, for NumPy


@dataclass
class Kept:
    """Tensors of a call, [rows, heads, width, size] each, and the cells that are in them.

    `places` says where the cells of a row are along the third axis; None: from 0 on, in order.
    """

    cells: list[Ints]
    values: list[Any]  # OrtValues, one for each plane
    width: int
    time: int  # of the call
    n_synced: list[int]  # cells of each row that the pool has
    places: list[Ints] | None = None
    binding: Any = None  # with past and present bound, where they are the same buffers

    @property
    def n_cells(self) -> int:
        """The room that it takes, in cells."""
        return len(self.cells) * self.width


@dataclass
class Presents:
    """What was kept, the latest last, within `max_cells`."""

    pool: HeadPool
    max_cells: int
    stamps: NDArray[np.int64] = field(init=False)  # the time of the last write of each cell
    clock: int = 0
    kept: list[Kept] = field(default_factory=list)
    n_gathered: int = 0  # calls that gathered their past, and that did not
    n_reused: int = 0

    def __post_init__(self) -> None:
        self.stamps = np.zeros(self.pool.n_cells, np.int64)

    def touch(self, cells: Ints) -> None:
        """Note that cells get new contents."""
        self.clock += 1
        self.stamps[cells] = self.clock

    def find(self, pasts: Sequence[Ints], partly: bool = False) -> Kept | None:
        """The latest that has exactly these rows of cells, or with `partly` more behind them."""
        for kept in reversed(self.kept):
            if len(kept.cells) == len(pasts) and self._has(kept, pasts, partly):
                return kept
        return None

    def arranged(self, chains: Sequence[Chain]) -> Sequence[Chain]:
        """The chains in the order of the rows of what was kept of them, if there is such a thing."""
        if len(chains) > 1 and len(chains[0].past):
            for kept in reversed(self.kept):
                rows = {int(cells[-1]): row for row, cells in enumerate(kept.cells)}
                order = [rows.get(int(chain.past[-1]), -1) for chain in chains]
                if len(rows) == len(chains) and sorted(order) == list(range(len(chains))):
                    return [chain for _, chain in sorted(zip(order, chains, strict=True), key=itemgetter(0))]
        return chains

    def remove(self, kept: Kept) -> None:
        """Take something out: the next call continues it."""
        self.kept = [each for each in self.kept if each is not kept]
        self.n_reused += 1

    def _has(self, kept: Kept, pasts: Sequence[Ints], partly: bool) -> bool:
        for cells, past in zip(kept.cells, pasts, strict=True):
            n = len(past)
            if not n or (len(cells) < n if partly else len(cells) != n):
                return False
            # The last cell differs first; a cell that was written since holds something else now.
            if cells[n - 1] != past[-1] or not np.array_equal(cells[:n], past):
                return False
            if self.stamps[past].max() > kept.time:
                return False
        return True

    def add(self, kept: Kept) -> None:
        """Keep the tensors of a call, and drop the oldest ones."""
        self.kept.append(kept)
        room = self.max_cells - kept.n_cells
        for number in range(len(self.kept) - 2, -1, -1):
            room -= self.kept[number].n_cells
            if room < 0:
                self.drop(number + 1)
                break

    def drop(self, n: int) -> None:
        """Give up the first `n`, once the pool has what they hold."""
        for kept in self.kept[:n]:
            self.sync_one(kept)
        del self.kept[:n]

    def sync(self) -> None:
        """Let the pool have everything, before it is read."""
        for kept in self.kept:
            self.sync_one(kept)

    def sync_one(self, kept: Kept) -> None:
        """Let the pool have what one call has left."""
        rows = [row for row, cells in enumerate(kept.cells) if kept.n_synced[row] < len(cells)]
        if not rows:
            return
        moves = [(row, *self._moved(kept, row)) for row in rows]
        for index, value in enumerate(kept.values):
            array = host_array(value)
            for row, cells, places in moves:
                self.pool.scatter(index, cells, array[row][:, places])
        for row in rows:
            kept.n_synced[row] = len(kept.cells[row])

    def _moved(self, kept: Kept, row: int) -> tuple[Ints, Ints]:
        """The cells of a row that the pool lacks and nobody has written since, and where they are."""
        first = kept.n_synced[row]
        cells = kept.cells[row][first:]
        if kept.places is None:
            places = np.arange(first, first + len(cells), dtype=np.int32)
        else:
            places = kept.places[row][first:]
        current = self.stamps[cells] <= kept.time
        return cells[current], places[current]

    def clear(self) -> None:
        """Free everything."""
        self.kept.clear()


def host_array(value: Any) -> NDArray[Any]:
    """The numbers of an OrtValue: as they are if it is on the host, else a copy."""
    if value.device_name().lower() == "cpu":
        return np.asarray(_HostMemory(value))
    copied: NDArray[Any] = value.numpy()
    return copied


class _HostMemory:
    """The memory of an OrtValue as NumPy takes it; OrtValues have `__dlpack__` from ONNX Runtime 1.26 on."""

    def __init__(self, value: Any) -> None:
        self._value = value  # owns the memory
        self.__array_interface__ = {
            "shape": tuple(value.shape()),
            "typestr": TYPES[value.data_type()],
            "data": (value.data_ptr(), True),  # which is read only
            "version": 3,
        }
