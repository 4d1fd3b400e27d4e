"""The options of a parallel run: names, defaults and checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass, fields
from math import cos, pi
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from stretto.engine.params import RequestParams, check_combinations, check_parallel, request_params
from stretto.errors import InvalidRequest, wrong_value
from stretto.options.documenting import document_options
from stretto.options.generating import PARALLEL, PARALLEL_OWN
from stretto.options.names import check_names
from stretto.options.option import without
from stretto.parallel.sets import Matrix
from stretto.parallel.types import Member
from stretto.sampling.params import check_number

# Thresholds that change over a run: functions of how much of it has passed, from 0 to 1.

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


Mode = Literal["isolated", "visible"] | ArrayLike | Callable[[list[Member]], ArrayLike]


@document_options(PARALLEL_OWN)
@dataclass(frozen=True)
class ParallelParams:
    """The options of a parallel run that ordinary requests do not have, checked."""

    threshold: float | Schedule = 0.15
    mode: Mode = "isolated"
    max_width: int = 8
    combine: str = "mixture"
    prune: float | None = None
    prune_after: int = 4
    temperature: float = 1.0
    delay: int = 16
    attention: bool | Literal["mean"] = False

    def __post_init__(self) -> None:
        if not callable(self.threshold):
            check_threshold(self.threshold)
        for option in PARALLEL_OWN:
            option.check(getattr(self, option.name))
        if isinstance(self.mode, str):
            if self.mode not in ("isolated", "visible"):
                raise wrong_value("mode", self.mode, "'isolated', 'visible', a boolean matrix or a function")
        elif not callable(self.mode):
            check_matrix(self.mode, self.max_width)

    @property
    def measures(self) -> bool:
        """Whether attention is asked for."""
        return self.prune is not None or bool(self.attention)

    def threshold_at(self, passed: float) -> float:
        """The threshold when so much of the run has passed."""
        if not callable(self.threshold):
            return self.threshold
        value = self.threshold(passed)
        check_threshold(value)
        return float(value)

    def sees(self, members: list[Member]) -> Matrix | None:
        """Which members of a set see which; None: all see all."""
        n = len(members)
        if n == 1 or (isinstance(self.mode, str) and self.mode == "visible"):
            return None
        if isinstance(self.mode, str):
            return np.eye(n, dtype=bool)
        matrix = self.mode(members) if callable(self.mode) else self.mode
        return check_matrix(matrix, n)[:n, :n]


def check_matrix(matrix: ArrayLike, width: int) -> Matrix:
    """A visibility matrix, for sets of up to `width` members."""
    array = np.asarray(matrix)
    if array.ndim != 2 or array.dtype != bool or array.shape[0] != array.shape[1] or len(array) < width:
        raise InvalidRequest(
            f"mode as a matrix must be bool[n, n] with n at least {width}, "
            f"not {array.dtype}{list(array.shape)}",
            param="mode",
        )
    if not array.diagonal().all():
        raise InvalidRequest(
            "mode as a matrix must be True on its diagonal: a token sees itself", param="mode"
        )
    return array


def parallel_params(options: Mapping[str, Any], n_vocab: int) -> tuple[ParallelParams, RequestParams]:
    """Check the options of a run; an unknown name raises, and one that a run has no use for says why."""
    check_parallel(options)
    check_names(options, NAMES)
    own = {name: value for name, value in options.items() if name in OWN}
    shared = {name: value for name, value in options.items() if name not in OWN}
    check_combinations(shared)
    return ParallelParams(**own), request_params(shared, n_vocab)


OWN = tuple(field.name for field in fields(ParallelParams))
NAMES = tuple(option.name for option in without(PARALLEL, "stream"))
