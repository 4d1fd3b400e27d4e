"""A bounded record of the last steps, for a page or a debugger to read while the engine runs."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

MAX_EVENTS = 1024


class StepEvent(NamedTuple):
    """One step: when it ended, how long it took, its tokens, the requests that ran and waited."""

    number: int
    ended: float  # seconds, of time.perf_counter
    seconds: float
    n_tokens: int
    running: int
    waiting: int


class StepEvents:
    """The last `MAX_EVENTS` steps; reading needs no lock."""

    def __init__(self) -> None:
        self._events: deque[tuple[int, float, float, int, int, int]] = deque(maxlen=MAX_EVENTS)
        self._n = 0

    def add(self, ended: float, seconds: float, n_tokens: int, running: int, waiting: int) -> None:
        """Record a step."""
        self._events.append((self._n, ended, seconds, n_tokens, running, waiting))
        self._n += 1

    def since(self, number: int = 0) -> list[StepEvent]:
        """The steps from this number on that are still recorded."""
        return [StepEvent(*event) for event in list(self._events) if event[0] >= number]
