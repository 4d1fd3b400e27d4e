"""Answers that repeat themselves: an exact definition, checked token by token."""

from __future__ import annotations

import numpy as np

MAX_PERIOD = 256  # tokens: a longer passage may repeat
MIN_COPIES = 4
MIN_TOKENS = 80  # of all copies together: short tokens such as dashes repeat for good reasons


class RepeatGuard:
    """Tells when a text repeats itself.

    It does if it ends with at least 4 copies of the same 1 to 256 tokens, one behind the other, that
    have 80 tokens or more together.

    >>> guard = RepeatGuard()
    >>> [guard.push(token) for token in [7, 8] * 40][-2:]
    [False, True]
    """

    def __init__(self) -> None:
        periods = np.arange(1, MAX_PERIOD + 1)
        copies = np.maximum(MIN_COPIES, -(-MIN_TOKENS // periods))
        self._wanted = periods * (copies - 1)  # so many tokens in a row that equal the one a period before
        self._runs = np.zeros(MAX_PERIOD, np.int64)  # so many there are now, for each period
        self._last = np.full(MAX_PERIOD, -1, np.int64)  # the last tokens, newest first
        self.period = 0  # how many tokens repeat, once some do

    def push(self, token: int) -> bool:
        """Add a token; True if the text repeats itself now."""
        self._runs = np.where(self._last == token, self._runs + 1, 0)
        self._last = np.concatenate(([token], self._last[:-1]))
        found = np.flatnonzero(self._runs >= self._wanted)
        if not found.size:
            return False
        self.period = int(found[0]) + 1
        return True
