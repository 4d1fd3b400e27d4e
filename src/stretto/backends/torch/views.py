"""The views of sequences on the device: cells and their positions in one pool, each view a contiguous part.

The native planner mirrors the pool and says which entries the device lacks. A decode step sends none: the
device itself appends its rows' cells (`append_cells`), in the pass.
"""

from __future__ import annotations

from typing import Any

from stretto import _native
from stretto.backends.torch.device import Tensor, uses_kernels
from stretto.backends.torch.upload import Sender


class Views:
    """The pool on the device. Its tensors are others after it has grown (`generation`)."""

    def __init__(self, device: Any, capacity: int) -> None:
        self.device = device
        self.generation = 0
        self._allocate(capacity)

    def _allocate(self, capacity: int) -> None:
        import torch

        self.cells = torch.zeros(capacity, dtype=torch.int32, device=self.device)
        self.positions = torch.zeros(capacity, dtype=torch.int32, device=self.device)

    def update(self, planner: _native.DevicePlanner, sender: Sender) -> None:
        """Send what the device lacks."""
        if planner.capacity != len(self.cells):  # nothing in it is needed: the planner sends all views again
            self._allocate(planner.capacity)
            self.generation += 1
        n = planner.unsent
        if n:
            planner.copy_unsent(sender.take(3 * n))
            entries, cells, positions = sender.send(3 * n).view(3, n)
            where = (entries.long(),)
            self.cells.index_put_(where, cells)
            self.positions.index_put_(where, positions)


def append_cells(
    views: Tensor, places: Tensor, offsets: Tensor, lengths: Tensor, cells: Tensor, positions: Tensor
) -> None:
    """Make each row's cell the last that it attends to in its view: the beginning of a decode step."""
    if uses_kernels(views):
        from stretto.backends.torch.kernels.cells import launch_append

        launch_append(views, places, offsets, lengths, cells, positions)
        return
    entries = (offsets + lengths - 1).long()
    views[entries] = cells
    places[entries] = positions
