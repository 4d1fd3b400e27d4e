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

from stretto import _native
from stretto.backends.torch.device import Tensor
from stretto.backends.torch.runs import Runs

SPAN = _native.SPAN  # view entries whose partial result is one
ALIGN = _native.ALIGN  # items start at multiples of it; the kernel's turns (BLOCK) must divide it
SHARED_ROWS = _native.SHARED_ROWS  # of a shared item
PROMPT_ROWS = _native.PROMPT_ROWS  # of a prompt item
HEAD = 4  # integers of an item before its rows

Kind = tuple[int | None, bool]  # of layers that attend alike: their window, and whether they are causal


@dataclass(frozen=True)
class Items:
    """Items of one kind, as records of HEAD + `block` integers in `data`.

    0: where the view begins in `Work.views`
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
class Work:
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
class Plan:
    """The integers of a pass on the device, and the work of each kind of layers.

    A plan of decoding has fixed addresses for its `key`, so that a pass over it can be captured in a graph;
    such a pass begins with `views.append_cells`. The views of other plans are complete.
    """

    n: int  # rows, padding included
    tokens: Tensor  # int32[n]
    positions: Tensor  # int32[n]
    cells: Tensor  # int32[n]; of padding, the scratch cell after the last
    rotated: Tensor  # int32[n, 3]: the positions that keys and queries are rotated by
    works: Mapping[Kind, Work]
    runs: Runs | None = None  # of recurrent layers, if the model has any; of decoding, each row is one
    # Of decoding: what a captured graph stays right for (bucket, shared items, the pool of views).
    key: tuple[int, bool, int] | None = None

    @property
    def appends(self) -> bool:
        """Whether the pass has to append the rows' cells to their views."""
        return self.key is not None

    def work(self, window: int | None, causal: bool = True) -> Work:
        """The work of layers with that window."""
        return self.works[window, causal]
