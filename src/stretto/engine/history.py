"""The engine's counters by the second, for the last minutes: its steps write them, so idling is free."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from stretto.engine.metrics import NO_COUNTS, Counts, Metrics

HISTORY_SECONDS = 900


class Second(NamedTuple):
    """What the steps did that began within a second, and how many requests ran and waited at its end."""

    second: int  # of time.perf_counter
    counts: Counts
    running: int
    waiting: int


class History:
    """The last `HISTORY_SECONDS` seconds in which there were steps; reading needs no lock."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._seconds: deque[Second] = deque(maxlen=HISTORY_SECONDS)
        self._now = -1
        self._before = NO_COUNTS

    def tick(self, now: float) -> None:
        """Note the time, before anything is counted."""
        second = int(now)
        if second != self._now:
            if self._now >= 0:
                self._seconds.append(self._open())
            self._before, self._now = self._metrics.counts(), second

    def seconds(self) -> list[Second]:
        """The seconds, the last one so far."""
        return [*self._seconds, self._open()] if self._now >= 0 else []

    def _open(self) -> Second:
        metrics = self._metrics
        return Second(self._now, metrics.counts().since(self._before), metrics.running, metrics.waiting)
