"""Positions of image tokens by rows and columns (M-RoPE), beside the running positions of cells.

A cell has one running position, which orders it in views and counts as context. Keys and queries are rotated
by three others, time, row and column:

    text        all three are p − lag
    an image    (b, b + row, b + column), where b is what text would have at the image's first token

An image takes as many rotated positions as its longer side has tokens, and more cells: text behind it lags.
`lag` is how far the highest rotated position up to a cell is behind the cell's running one: 0 in text without
images. It is kept for each cell, so that edits of a sequence need not know what was there before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from stretto.cache.cells import Cells
from stretto.errors import InvalidRequest

Ints = NDArray[np.int32]
GridPlace = tuple[int, int]  # a token's index in its image, and how many tokens are a row of the image


def reach(index: int, columns: int) -> int:
    """The highest row or column among tokens 0 to `index` of an image."""
    return max(index // columns, min(index, columns - 1))


def lag_before(cells: Cells, sequence: int, position: int) -> int:
    """The lag of a sequence's last cell before a position."""
    view = cells.views.get(sequence)
    if cells.lags is None or view is None:
        return 0
    at = view.index(position, cells.positions)
    return int(cells.lags[view.cells[at - 1]]) if at else 0


def set_lags(cells: Cells, placed: Ints | list[int], lags: Ints | list[int]) -> None:
    """Note the lags of cells that were just placed; the column is made with the first that is not 0."""
    if cells.lags is None and np.any(lags):
        cells.lags = np.zeros(len(cells), np.int32)
    if cells.lags is not None:
        cells.lags[placed] = lags


def rotated_positions(
    cells: Cells,
    positions: Sequence[int],
    sequences: Sequence[Sequence[int]],
    places: Mapping[int, GridPlace],
) -> tuple[Ints, Ints]:
    """int32[n, 3] and the lags int32[n] of rows that are about to be placed.

    `places` names the rows that are image tokens; those of an image follow each other.
    """
    rotated, lags = np.empty((len(positions), 3), np.int32), np.empty(len(positions), np.int32)
    last: dict[int, tuple[int, int]] = {}  # of each sequence: position and lag of its last token
    for row, position in enumerate(positions):
        sequence = sequences[row][0]
        if sequence not in last:
            last[sequence] = position - 1, lag_before(cells, sequence, position)
        before, lag = last[sequence]
        if row in places:
            index, columns = places[row]
            begin = before - lag - reach(index - 1, columns) if index else position - lag
            if begin < 0:
                raise InvalidRequest(
                    f"row {row} is token {index} of an image whose first tokens are not there; give all",
                    param="place",
                )
            rotated[row] = begin, begin + index // columns, begin + index % columns
            lag = position - begin - reach(index, columns)
        else:
            rotated[row] = position - lag
        lags[row] = lag
        last[sequence] = position, lag
    return rotated, lags
