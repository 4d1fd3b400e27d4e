"""Rows of logits: NumPy arrays, or rows that stay on a device until something on the host looks at them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from stretto.backends.base import DeviceRow

Row = NDArray[np.float32]  # float32[n_vocab]
Rows = NDArray[np.float32] | Sequence[DeviceRow]  # float32[n, n_vocab], or rows that are on a device


def host_row(row: Row | DeviceRow) -> Row:
    """A row as NumPy sees it."""
    return row if isinstance(row, np.ndarray) else row.numpy()


def host_rows(rows: Rows, n_vocab: int = 0) -> NDArray[np.float32]:
    """float32[n, n_vocab] on the host; `n_vocab` counts where there are no rows on a device to tell it."""
    if isinstance(rows, np.ndarray):
        return rows
    fetch_rows(rows)
    return np.stack([row.numpy() for row in rows]) if rows else np.empty((0, n_vocab), np.float32)


def fetch_rows(rows: Iterable[Row | DeviceRow | None]) -> None:
    """Move rows that are on a device to the host together: all will be looked at there."""
    there = [row for row in rows if row is not None and not isinstance(row, np.ndarray)]
    if len(there) > 1:
        there[0].fetch(there[1:])
