"""Which cells are free: a stack, from which low cells are taken first."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stretto.errors import CacheFull


class FreeCells(list[int]):
    """The free ones of a number of cells; the next to be taken are at the end."""

    __slots__ = ("n_cells",)

    def __init__(self, n_cells: int) -> None:
        super().__init__(range(n_cells - 1, -1, -1))
        self.n_cells = n_cells

    def take(self, n: int) -> list[int]:
        """Free cells, low ones first; all or none: without enough of them `CacheFull`."""
        if n > len(self):
            raise CacheFull(
                f"{n} cells are needed and {len(self)} of {self.n_cells} are free; "
                "close sequences, or load the model with more cells",
                n_needed=n,
                n_free=len(self),
            )
        taken = self[: -n - 1 : -1]
        del self[len(self) - n :]
        return taken

    def give_back(self, cells: NDArray[np.int32]) -> None:
        """Have cells taken again, the lowest of them next."""
        self.extend(np.sort(cells)[::-1].tolist())

    def reset(self, is_free: NDArray[np.bool_]) -> None:
        """Have just those cells free whose entry is set."""
        self[:] = np.flatnonzero(is_free)[::-1].tolist()
