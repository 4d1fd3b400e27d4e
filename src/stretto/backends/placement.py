"""The cells of a batch, as a backend gets them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]


@dataclass(frozen=True)
class Placement:
    """The cells of a batch's tokens, and the cells that each token attends to.

    Row i writes cell `cells[i]` and attends to the first `lengths[i]` entries of `views[view_of[i]]`
    (in layers with a window: to those of them whose positions are near enough). In recurrent layers it
    advances the state in slot `slots[i]`, in place; rows of one slot stand in order of position.
    """

    cells: Ints  # int32[n]
    views: list[Ints]
    view_of: Ints  # int32[n]
    lengths: Ints  # int32[n]
    table: Ints  # int32[n_cells], the position of every cell
    rotated: Ints | None = None  # int32[n, 3] where they are not the positions (cache/lags.py)
    slots: Ints | None = None  # int32[n]; None: the model has no recurrent layers
    causal: Ints | None = None  # int32[n], the lengths if no row attended beyond its own position
    sequences: list[int] | None = None  # whose views these are, for backends that keep views
    edits: list[int] | None = None  # the number of each view's last edit (cache/views.py)
