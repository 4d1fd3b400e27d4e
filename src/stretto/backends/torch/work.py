"""The work of attention: which rows attend to which cells, as the integers that its kernel takes.

Row r attends to entries `firsts[r]` … `lengths[r]` (exclusive) of its view, which begins at
`views[offsets[r]]`. That is all there is to masks: views are in position order, so a window is a range of
view indices, as is attention in both directions and attention ahead. Plain attention needs nothing else.

The kernel takes items. All partial results are of a *span*: entries s × SPAN … (s + 1) × SPAN of a view, by
view index, so that they do not depend on what else is in the batch; results of a row's spans are joined in
order. An item masks each row by its own `firsts` and `lengths`; entries left out change no bit (their weight
is 0, and they are never the maximum), so that an item may start later than its span: at a multiple of ALIGN.

    single   one row, one span s: the partial result goes to slot `slot0[r] + s`. Of all single items of a
             row (`wait[r]` of them) the last to finish joins the row's slots in order: those of spans
             `firsts[r] // SPAN` … `firsts[r] // SPAN + spans[r]`.
    shared   up to SHARED_ROWS rows, one span s whose cells are the same for all of them (forks of one
             prompt, a few draft tokens): for each row a partial result in slot `slot0[row] + s`. Launched
             before `single`; each of its rows has at least one single item, its last span, which joins them.
    prompt   up to PROMPT_ROWS rows of one view, everything that they attend to: spans are joined inside the
             item, in order.

Each row has either exactly one prompt item, or slots.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stretto import _native
from stretto.backends.torch.device import Tensor
from stretto.errors import InvalidRequest

# The rows of a pass by state slot: what kernels of recurrent layers walk, as integers on the device.

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


SPAN = _native.SPAN  # view entries whose partial result is one
ALIGN = _native.ALIGN  # items start at multiples of it; the kernel's turns (BLOCK) must divide it
SHARED_ROWS = _native.SHARED_ROWS  # of a shared item
PROMPT_ROWS = _native.PROMPT_ROWS  # of a prompt item
HEAD = 4  # integers of an item before its rows

# Of layers that attend alike: their window (below 0 a chunk), and whether they are causal.
Kind = tuple[int | None, bool]


@dataclass(frozen=True)
class Items:
    """Items of one kind, as records of HEAD + `block` integers in `data`.

    0: where the view begins in `AttentionWork.views`
    1: the first view index, a multiple of ALIGN, within the span
    2: the view index after the last, within the span; of prompt items, the longest of the rows' lengths
    3: the span s (0 for prompt items)
    4 … 4 + block: its rows; −1 where there are fewer

    Item i is at `data[head[1] + i * (HEAD + block)]`, for i < `head[0]`. Both numbers are on the device,
    since they change from step to step where the addresses must not.
    """

    block: int  # rows of an item: 1, SHARED_ROWS or PROMPT_ROWS
    data: Tensor  # int32[…]
    head: Tensor  # int32[2]: how many items, and where in `data` the first of them begins
    count: int | None  # how many, where the host may use it; None: this work is captured in a graph
    most: int  # an upper bound of `count`, constant for a bucket


@dataclass(frozen=True)
class AttentionWork:
    """The work of all layers with one window. Rows of padding attend to one entry, the scratch cell."""

    views: Tensor  # int32[…]: cells; a view is contiguous
    places: Tensor  # int32[…], beside `views`: the position of each entry's cell (for ALiBi)
    positions: Tensor  # int32[n], of the rows (for ALiBi)
    offsets: Tensor  # int32[n]: where each row's view begins in `views`
    firsts: Tensor  # int32[n]: the first view index that the row attends to
    lengths: Tensor  # int32[n]: the view index after the last
    slot0: Tensor  # int32[n]: the slot of the row's span 0, so that span s has slot0 + s; may be below 0
    spans: Tensor  # int32[n]: how many slots it has, from span firsts // SPAN on; 0 for rows of prompt items
    wait: Tensor  # int32[n]: how many single items the row has; ≥ 1 where spans ≥ 1
    n_slots: int  # slots of all rows together, at most; constant for a bucket
    single: Items | None  # None: there are none (and none in any step of this graph)
    shared: Items | None
    prompt: Items | None


@dataclass(frozen=True)
class PassWork:
    """The integers of a pass on the device, and the work of each kind of layers.

    That of decoding has fixed addresses for its `key`, so that a pass over it can be captured in a graph;
    such a pass begins with `views.append_cells`. Other views are complete.
    """

    n: int  # rows, padding included
    tokens: Tensor  # int32[n]
    positions: Tensor  # int32[n]
    cells: Tensor  # int32[n]; of padding, the scratch cell after the last
    rotated: Tensor  # int32[n, 3]: the positions that keys and queries are rotated by
    works: Mapping[Kind, AttentionWork]
    runs: Runs | None = None  # of recurrent layers, if the model has any; of decoding, each row is one
    # Of decoding: what a captured graph stays right for (bucket, shared items, the pool of views).
    key: tuple[int, bool, int] | None = None

    @property
    def appends(self) -> bool:
        """Whether the pass has to append the rows' cells to their views."""
        return self.key is not None

    def of(self, window: int | None, causal: bool = True) -> AttentionWork:
        """The work of layers with that window."""
        return self.works[window, causal]


# How products of queries and keys become scores.


@dataclass(frozen=True)
class Scoring:
    """The arguments of attention beside queries, cells and work."""

    scale: float
    cap: float = 0.0  # scores become cap × tanh(score / cap); 0: as they are
    sinks: Tensor | None = None  # float32[heads]: scores that belong to no cell
    alibi: Tensor | None = None  # float32[heads]: what scores fall by with each position of distance
