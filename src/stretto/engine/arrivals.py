"""Threads that are about to ask for the engine's lock, so that a thread that steps lets them have it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from stretto.hardware import fork_safety

LOCK_HANDOFF_SECONDS = 0.002  # between two steps, at most


class Arrivals:
    """Counts the threads that are adding requests; `interrupt` ends a fused loop early for them."""

    def __init__(self) -> None:
        self._changed = fork_safety.condition()
        self._n = 0
        self.interrupt = np.zeros(1, np.uint8)  # read by the fused loop

    @contextmanager
    def arriving(self) -> Iterator[None]:
        """Requests are being added. That needs the engine's lock, which a thread that releases it and takes
        it again at once would win race after race."""
        with self._changed:
            self._n += 1
            self.interrupt[0] = 1
        try:
            yield
        finally:
            with self._changed:
                self._n -= 1
                self.interrupt[0] = self._n > 0
                self._changed.notify_all()

    def hand_over(self) -> None:
        """Wait a moment for threads that are arriving."""
        if self._n:
            with self._changed:
                self._changed.wait_for(lambda: not self._n, LOCK_HANDOFF_SECONDS)
