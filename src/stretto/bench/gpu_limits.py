"""The limits of a GPU: how fast it reads its memory, and multiplies matrices of bfloat16.

The best of many turns counts, as on a CPU. Used by `limits` for models that run on one.
"""

from __future__ import annotations

import time
from typing import Any

READ_BYTES = 4 << 30  # far more than the caches hold
SIDE = 8192  # of the matrices that are multiplied


def read_gigabytes(torch: Any, device: Any, nbytes: int, seconds: float) -> tuple[float, int]:
    """GB/s of reading the device's memory, and the bytes of the buffer that was read."""
    free, _ = torch.cuda.mem_get_info(device)
    nbytes = min(max(nbytes, READ_BYTES), free // 4) // 8 * 8
    block = torch.zeros(nbytes // 8, dtype=torch.int64, device=device)
    return nbytes / 1e9 / best_seconds(torch, block.max, seconds), nbytes


def multiplies(torch: Any, device: Any, seconds: float) -> float:
    """GMAC/s of a product of square matrices of bfloat16 by the vendor's library."""
    x = torch.ones(SIDE, SIDE, dtype=torch.bfloat16, device=device)
    return SIDE**3 / 1e9 / best_seconds(torch, lambda: x @ x, seconds)


def best_seconds(torch: Any, work: Any, seconds: float) -> float:
    """The time of the quickest turn; the first ones raise the clock and are not counted."""
    for _ in range(3):
        work()
    torch.cuda.synchronize()
    best, end = float("inf"), time.perf_counter() + seconds
    while best == float("inf") or time.perf_counter() < end:
        begun = time.perf_counter()
        work()
        torch.cuda.synchronize()
        best = min(best, time.perf_counter() - begun)
    return best
