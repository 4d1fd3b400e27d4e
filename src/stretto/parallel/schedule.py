"""Thresholds that change over a run: functions of how much of it has passed, from 0 to 1."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass
from math import cos, pi

from stretto.sampling.params import check_number

Schedule = Callable[[float], float]


def check_threshold(value: float) -> None:
    """Raise `InvalidRequest` unless `value` is a threshold."""
    check_number("threshold", value, 0.0, 1.0, open_low=True)


class _Checked:
    def __post_init__(self) -> None:
        for value in astuple(self):  # type: ignore[call-overload]  # subclasses are dataclasses
            check_threshold(value)


@dataclass(frozen=True)
class Linear(_Checked):
    """From `start` to `end` in a straight line.

    >>> Linear(0.1, 0.5)(1.0)
    0.5
    """

    start: float
    end: float

    def __call__(self, passed: float) -> float:
        """The threshold when so much has passed."""
        return (1.0 - passed) * self.start + passed * self.end


@dataclass(frozen=True)
class Cosine(_Checked):
    """From `start` to `end` along half a cosine: slow at both ends.

    >>> Cosine(0.1, 0.5)(0.0)
    0.1
    """

    start: float
    end: float

    def __call__(self, passed: float) -> float:
        """The threshold when so much has passed."""
        done = 0.5 * (1.0 - cos(pi * passed))
        return (1.0 - done) * self.start + done * self.end


@dataclass(frozen=True)
class Bezier(_Checked):
    """A cubic Bézier curve: from `start` towards `first`, arriving at `end` from `second`.

    >>> Bezier(0.5, 0.5, 0.1, 0.1)(1.0)
    0.1
    """

    start: float
    first: float
    second: float
    end: float

    def __call__(self, passed: float) -> float:
        """The threshold when so much has passed."""
        t, s = passed, 1.0 - passed
        return s**3 * self.start + 3 * s * s * t * self.first + 3 * s * t * t * self.second + t**3 * self.end
