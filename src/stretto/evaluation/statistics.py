"""Estimates with confidence intervals.

Tokens of one window depend on each other, so errors are estimated from sums over windows (a cluster-robust
error) with Student's t; quantiles by a bootstrap over windows. Shares of questions get Wilson's interval.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]

Z95 = 1.959964
# Student's t at 97.5 % for 1 to 20 degrees of freedom; beyond them an expansion is exact to 1e-4.
T95 = (
    *(12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281),
    *(2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860),
)
RESAMPLES = 500
MAX_RESAMPLED = 1 << 27  # values that all resamples of a bootstrap may have together


@dataclass(frozen=True)
class Estimate:
    """A figure, its standard error, and the bounds of its 95 % confidence interval.

    All but `value` are None where a text is too short for them, or the figure has none.
    """

    value: float
    error: float | None = None
    low: float | None = None
    high: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def exp(self) -> Estimate:
        """The estimate of exp(x): perplexity from the mean negative log-likelihood."""
        value = math.exp(self.value)
        if self.error is None or self.low is None or self.high is None:
            return Estimate(value)
        return Estimate(value, self.error * value, math.exp(self.low), math.exp(self.high))

    def within(self, least: float, most: float = math.inf) -> Estimate:
        """With its interval cut to values that are possible."""
        if self.low is None or self.high is None:
            return self
        return Estimate(self.value, self.error, max(least, self.low), min(most, self.high))


def student95(freedom: int) -> float:
    """The factor of a standard error in a 95 % interval.

    >>> round(student95(30), 3)
    2.042
    """
    if freedom <= len(T95):
        return T95[freedom - 1]
    z, n = Z95, freedom
    return z + (z**3 + z) / (4 * n) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n * n)


def clustered_mean(windows: list[Doubles]) -> Estimate:
    """The mean over all values, with an error that allows for dependence within a window."""
    total = sum(len(window) for window in windows)
    mean = float(sum(float(window.sum()) for window in windows) / total)
    if len(windows) < 2:
        return Estimate(mean)
    sums = np.array([float((window - mean).sum()) for window in windows])
    n = len(windows)
    error = math.sqrt(n / (n - 1) * float(np.square(sums).sum())) / total
    reach = student95(n - 1) * error
    return Estimate(mean, error, mean - reach, mean + reach)


def token_error(windows: list[Doubles]) -> float | None:
    """The standard error of the mean if all tokens were independent, as llama.cpp prints it."""
    values = np.concatenate(windows)
    if len(values) < 2:
        return None
    return math.sqrt(max(0.0, float(values.var())) / (len(values) - 1))


def bootstrap_quantiles(windows: list[Doubles], points: tuple[float, ...]) -> list[Estimate]:
    """Quantiles over all values; the intervals are of resampled windows, with a fixed seed."""
    values = np.concatenate(windows)
    found = np.quantile(values, points)
    n_resamples = min(RESAMPLES, MAX_RESAMPLED // len(values))
    if len(windows) < 2 or n_resamples < 100:
        return [Estimate(float(value)) for value in found]
    random = np.random.default_rng(0)
    drawn = np.empty((n_resamples, len(points)))
    for row in drawn:
        chosen = random.integers(0, len(windows), len(windows))
        row[:] = np.quantile(np.concatenate([windows[number] for number in chosen]), points)
    low, high = np.quantile(drawn, (0.025, 0.975), axis=0)
    errors = drawn.std(axis=0, ddof=1)
    return [
        Estimate(float(value), float(error), float(least), float(most))
        for value, error, least, most in zip(found, errors, low, high, strict=True)
    ]


def share(n_right: int, n: int) -> Estimate:
    """A share of independent cases, with Wilson's interval.

    >>> round(share(8, 10).low, 2), round(share(8, 10).high, 2)
    (0.49, 0.94)
    """
    p, z2 = n_right / n, Z95 * Z95
    middle = (p + z2 / (2 * n)) / (1 + z2 / n)
    reach = Z95 / (1 + z2 / n) * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n))
    error = math.sqrt(p * (1 - p) / n)
    return Estimate(p, error, max(0.0, middle - reach), min(1.0, middle + reach))
