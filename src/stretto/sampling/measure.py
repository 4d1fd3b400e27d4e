"""Log-probabilities of a token and of the best ones beside it, on the host."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from stretto.sampling.transforms import log_softmax

Row = NDArray[np.float32]  # float32[n_vocab]
Mask = NDArray[np.uint32]


def measure(row: Row, token: int, n_top: int) -> tuple[float, list[tuple[int, float]]]:
    """Log-probability of a token in a row's distribution, and those of the `n_top` best with their ids."""
    logs = log_softmax(row)
    n = min(n_top, len(logs))
    if not n:
        return float(logs[token]), []
    best = np.argpartition(-logs, n - 1)[:n]
    best = best[np.lexsort((best, -logs[best]))]
    return float(logs[token]), [(int(i), float(logs[i])) for i in best if logs[i] > -np.inf]


def measure_given(row: Row, tokens: Iterable[int]) -> list[tuple[int, float]]:
    """Log-probabilities of certain tokens, with their ids."""
    logs = log_softmax(row)
    return [(token, float(logs[token])) for token in tokens]


def allow(row: Row, mask: Mask) -> Row:
    """A copy of a row in which tokens without a bit in the mask, uint32[n_vocab / 32], have −inf."""
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    return np.where(bits[: len(row)] != 0, row, np.float32(-np.inf)).astype(np.float32, copy=False)
