"""The rows of a pass by state slot: what kernels of recurrent layers walk, as integers on the device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stretto.backends.torch.device import Tensor
from stretto.errors import InvalidRequest

Ints = NDArray[np.int32]
TILE = 8  # rows of one slot that a program convolves together; at least a convolution's kernel − 1


@dataclass(frozen=True)
class Runs:
    """The runs of a pass, one for each slot: its rows in order.

    Shapes depend on the bucket and the number of tiles alone, so a captured pass reads new numbers from the
    same memory. Padding: empty runs, empty tiles, and rows that belong to no run, whose results are 0.
    """

    rows: Tensor  # int32[bucket]: the rows, run after run, then those of padding
    bounds: Tensor  # int32[count + 1]: run j is rows[bounds[j] : bounds[j + 1]]
    slots: Tensor  # int32[count]: the slot of each run
    tiles: Tensor  # int32[n_tiles, 2]: the run of each tile, and the place of its first row in `rows`

    @property
    def count(self) -> int:
        """Runs, empty ones included."""
        return int(self.slots.shape[0])

    @property
    def n_rows(self) -> int:
        """Rows of the pass, with padding."""
        return int(self.rows.shape[0])

    @property
    def n_tiles(self) -> int:
        """Tiles, empty ones included."""
        return int(self.tiles.shape[0])


@dataclass(frozen=True)
class RunNumbers:
    """The integers of `Runs` in one array of the host, which can be part of a larger block."""

    numbers: Ints  # int32[bucket + (count + 1) + count + 2 × n_tiles]
    bucket: int
    count: int
    n_tiles: int

    def within(self, block: Tensor) -> Runs:
        """Views of a tensor int32[len(numbers)] that holds, or will hold, the numbers."""
        ends = np.cumsum([self.bucket, self.count + 1, self.count, 2 * self.n_tiles])
        rows, bounds, slots, tiles = (
            block[first:last] for first, last in zip([0, *ends[:-1]], ends, strict=True)
        )
        return Runs(rows, bounds, slots, tiles.reshape(-1, 2))


def run_numbers(slots: Ints, bucket: int | None = None) -> RunNumbers:
    """The numbers of a pass whose row i advances slot `slots[i]`; rows of one slot stand in order.

    With a bucket there are that many rows, runs and tiles, whatever the slots are: a pass of up to `bucket`
    rows. Without, there are no more than needed.
    """
    n = len(slots)
    if bucket is not None and n > bucket:
        raise InvalidRequest(f"{n} rows do not fit a pass of {bucket}", param="bucket", value=bucket)
    rows = np.argsort(slots, kind="stable").astype(np.int32)
    sorted_slots = slots[rows]
    firsts = np.flatnonzero(np.diff(sorted_slots, prepend=-1)) if n else np.zeros(0, np.intp)
    bounds = np.append(firsts, n)
    tiles = [
        (j, first) for j in range(len(firsts)) for first in range(int(bounds[j]), int(bounds[j + 1]), TILE)
    ]
    width = n if bucket is None else bucket
    count, n_tiles = (len(firsts), len(tiles)) if bucket is None else (bucket, bucket)
    numbers = np.zeros(width + 2 * count + 1 + 2 * n_tiles, np.int32)
    parts = np.split(numbers, np.cumsum([width, count + 1, count]))
    parts[0][:] = np.arange(width)
    parts[0][:n] = rows
    parts[1][:] = n
    parts[1][: len(bounds)] = bounds
    parts[2][: len(firsts)] = sorted_slots[firsts]
    # The run of an empty tile is any one, and its first row stands behind all.
    parts[3][1::2] = n
    parts[3][: 2 * len(tiles)] = np.array(tiles, np.int32).ravel()
    return RunNumbers(numbers, width, count, n_tiles)


def runs(slots: Ints, bucket: int | None, device: Tensor) -> Runs:
    """The runs of a pass, on the device."""
    import torch

    found = run_numbers(slots, bucket)
    return found.within(torch.from_numpy(found.numbers).to(device, non_blocking=True))
