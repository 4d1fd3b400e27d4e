"""The frequencies of rotary positions, plain and stretched by YaRN."""

from __future__ import annotations

from math import ceil, floor, log, pi

import numpy as np
from numpy.typing import NDArray


def plain_frequencies(base: float, size: int) -> NDArray[np.float64]:
    """base^(−2i/size) for each pair i."""
    return base ** (-np.arange(0, size, 2, dtype=np.float64) / size)


def yarn(
    frequencies: NDArray[np.float64],
    base: float,
    factor: float,
    original: int,
    fast: float,
    slow: float,
    whole: bool = True,
) -> NDArray[np.float64]:
    """Keep the frequencies that rotate often within the original context, stretch the others.

    Pairs that rotate more than `fast` times keep their frequency, those under `slow` times are divided by
    `factor`, and a linear ramp joins the two: between whole pairs if `whole`.
    """
    size = 2 * len(frequencies)

    def pair_turning(times: float) -> float:
        return size * log(original / (times * 2 * pi)) / (2 * log(base))

    low, high = pair_turning(fast), pair_turning(slow)
    if whole:
        low, high = floor(low), ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    ramp = np.clip((np.arange(len(frequencies)) - low) / max(high - low, 0.001), 0.0, 1.0)
    stretched: NDArray[np.float64] = frequencies * (1 - ramp) + frequencies / factor * ramp
    return stretched


def magnitude(factor: float, multiplier: float = 0.1) -> float:
    """How much longer queries and keys become, by the factor that their frequencies are stretched by."""
    return 1.0 + multiplier * log(factor)
