"""The repeat guard: finds texts whose tail is one passage, over and over. Decoders ask it for each token."""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

MAX_PERIOD = 256  # tokens of the passage; a longer one may repeat
MIN_COPIES = 4
MIN_TOKENS = 400  # of all copies together: rows of zeros, tables and refrains repeat for good reasons
CHECK_TOKENS = 16  # that are looked at together: at every 16th token a text may be found to repeat itself

_PERIODS = np.arange(MAX_PERIOD, 0, -1)
_WANTED = np.maximum(MIN_COPIES * _PERIODS, MIN_TOKENS) - _PERIODS  # tokens in a row that equal earlier ones


class RepeatGuard:
    """Tells when a text repeats itself.

    It does if it ends with 400 tokens or more that are one passage of 1 to 256 tokens, at least 4 times. It
    looks at every 16th token, all periods at once, so that whoever pushes the same tokens gets the same
    answer at the same one, and a token costs about a microsecond, whatever the text is.

    >>> guard = RepeatGuard()
    >>> [guard.push(token) for token in [7, 8] * 200][-2:]
    [False, True]
    """

    def __init__(self) -> None:
        self._fresh: list[int] = []  # not looked at yet
        self._last = np.full(MAX_PERIOD + CHECK_TOKENS, -1, np.int64)  # the last tokens that were
        self._earlier = sliding_window_view(self._last[:-1], CHECK_TOKENS)  # [periods, 16], the longest first
        self._runs = np.zeros(MAX_PERIOD, np.int64)  # how many in a row equal the one a period before them

    def push(self, token: int) -> bool:
        """Add a token; True if the text repeats itself now."""
        fresh, last = self._fresh, self._last
        fresh.append(token)
        if len(fresh) < CHECK_TOKENS:
            return False
        last[:-CHECK_TOKENS] = last[CHECK_TOKENS:]
        last[-CHECK_TOKENS:] = fresh
        fresh.clear()
        differs = (self._earlier != last[-CHECK_TOKENS:])[:, ::-1]  # newest first
        since = differs.argmax(axis=1)  # tokens behind the newest that differs; 0 also if none does
        self._runs += CHECK_TOKENS
        np.copyto(self._runs, since, where=differs.any(axis=1))
        return bool((self._runs >= _WANTED).any())

    def fork(self) -> RepeatGuard:
        """An independent copy with the same state."""
        twin = RepeatGuard()
        twin._fresh = list(self._fresh)
        twin._last[:], twin._runs[:] = self._last, self._runs
        return twin
