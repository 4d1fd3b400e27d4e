"""How many replicas a model needs, by its queue and the pressure on its cells.

A replica that has as many requests as it is to have, or whose requests hold as many cells as they are to
hold, is one replica's worth of load; the sum over all replicas, rounded up, is how many are needed. Requests
alone say little: three long conversations may fill a cache that three hundred short ones do not.

Ray calls `Pressure` in its controller, where this module is sent by value: it imports the standard library
only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

REQUESTS, CELLS = "stretto_requests", "stretto_cells"  # what replicas report
SLACK = 1e-6  # so that 8 of 8 requests are one replica's worth in floating point too


def load_of(requests: float, cells: float, target_requests: float, target_cells: float) -> float:
    """The load of a replica with so many requests, running and waiting, that hold a share of its cells.

    >>> load_of(4, 0.1, 8, 0.8), load_of(1, 0.9, 8, 0.9)
    (0.5, 1.0)
    """
    return max(requests / target_requests, cells / target_cells)


def needed(loads: list[float]) -> int:
    """How many replicas share these loads without any having more than one replica's worth.

    >>> needed([1.5]), needed([0.5, 0.5]), needed([0.4, 0.7]), needed([])
    (2, 1, 2, 0)
    """
    return math.ceil(sum(loads) - SLACK) if loads else 0


class Pressure:
    """A policy for Ray Serve: called now and then with what the replicas report."""

    def __init__(self, requests: float, cells: float) -> None:
        self.requests = requests
        self.cells = cells

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        """The number of replicas that are needed, within the bounds of the settings, and no state."""
        reported: Mapping[str, Mapping[Any, float]] = context.aggregated_metrics or {}
        requests, cells = reported.get(REQUESTS, {}), reported.get(CELLS, {})
        loads = [
            load_of(requests[replica], cells.get(replica, 0.0), self.requests, self.cells)
            for replica in requests
        ]
        if not loads:  # nobody has reported yet
            return context.target_num_replicas, {}
        least, most = context.capacity_adjusted_min_replicas, context.capacity_adjusted_max_replicas
        return max(least, min(most, needed(loads))), {}
