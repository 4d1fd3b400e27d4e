"""Answers by the second, for the last minutes: written when there is one, so an idle server costs nothing."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

from stretto.engine.metrics import HISTORY_SECONDS
from stretto.server.errors import CLIENT_GONE


@dataclass
class AnswerSecond:
    """The answers of a second, and CPU time up to the first of them: of the process and the event loop."""

    second: int  # of time.perf_counter
    process: float
    loop: float
    n: int = 0
    n_4xx: int = 0
    n_5xx: int = 0


class AnswerHistory:
    """The last `HISTORY_SECONDS` seconds in which there were answers; used by the event loop's thread."""

    def __init__(self) -> None:
        self.seconds: deque[AnswerSecond] = deque(maxlen=HISTORY_SECONDS)
        self.n_4xx = self.n_5xx = 0

    def count(self, status: int) -> None:
        """Count an answer."""
        second = int(time.perf_counter())
        if not self.seconds or self.seconds[-1].second != second:
            self.seconds.append(AnswerSecond(second, time.process_time(), time.thread_time()))
        last = self.seconds[-1]
        last.n += 1
        if 400 <= status < CLIENT_GONE:
            last.n_4xx += 1
            self.n_4xx += 1
        elif status >= 500:
            last.n_5xx += 1
            self.n_5xx += 1
