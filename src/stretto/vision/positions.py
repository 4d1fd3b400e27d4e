"""Where a patch stands, for both encoders: learned positions of any grid, and the angles of its rotation."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stretto.vision.spec import Grid, VisionSpec

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]


def position_rows(table: Floats, spec: VisionSpec, grid: Grid) -> Floats:
    """float32[positions, n_embd]: what is added to the patches of a grid."""
    rows, columns = grid
    if spec.positions == "learned":
        return table
    if spec.positions == "axes":  # a table for columns and one for rows
        both: Floats = table[0][None, :columns] + table[1][:rows, None]
        return both.reshape(rows * columns, spec.n_embd)
    side = round(len(table) ** 0.5)
    square = table.reshape(side, side, spec.n_embd)
    between = _blend(_blend(square, rows).swapaxes(0, 1), columns).swapaxes(0, 1)
    return np.ascontiguousarray(between).reshape(rows * columns, spec.n_embd)


def _blend(table: Floats, n: int) -> Floats:
    """n rows of a table of `side`, evenly from the first to the last, between two rows by their distance."""
    at = np.linspace(0, len(table) - 1, n)
    low = at.astype(np.int64)
    high = np.minimum(low + 1, len(table) - 1)
    share = (at - low).astype(np.float32).reshape(-1, 1, 1)
    out: Floats = table[low] * (1 - share) + table[high] * share
    return out


def rope_pairs(spec: VisionSpec) -> Ints:
    """int32[head_size / 2, 2]: the numbers of a head that are rotated together."""
    size = spec.head_size
    first = np.arange(size // 2)
    if spec.rope == "adjacent":
        pairs = np.stack((2 * first, 2 * first + 1), axis=1)
    elif spec.rope == "halves":
        pairs = np.stack((first, first + size // 2), axis=1)
    else:  # each half by halves of its own
        first = np.where(first < size // 4, first, first + size // 4)
        pairs = np.stack((first, first + size // 4), axis=1)
    return np.ascontiguousarray(pairs, np.int32)


def rotation(spec: VisionSpec, grid: Grid) -> Floats | None:
    """float32[patches, head_size / 2, 2]: cosine and sine for each pair of numbers, None without rotation.

    The first half of the pairs is rotated by a patch's row, the second by its column, or the other way round.
    """
    if not spec.rope:
        return None
    quarter = spec.head_size // 4
    step = 2 * np.arange(quarter, dtype=np.float32) / np.float32(2 * quarter)
    frequencies = (1 / np.float32(spec.rope_base) ** step).astype(np.float32)
    second = frequencies
    if spec.rope == "adjacent":  # every other one of a whole head's frequencies
        shift = np.float32(2 / spec.head_size)
        second = (1 / np.float32(spec.rope_base) ** (step + shift)).astype(np.float32)
    row, column = np.divmod(np.arange(grid[0] * grid[1], dtype=np.float32), np.float32(grid[1]))
    first_axis, second_axis = (column, row) if spec.rope == "quarters" else (row, column)
    angles = np.concatenate((np.outer(first_axis, frequencies), np.outer(second_axis, second)), axis=1)
    return np.ascontiguousarray(np.stack((np.cos(angles), np.sin(angles)), axis=2))
