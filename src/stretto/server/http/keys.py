"""What each key has under way and has used: its limits are checked here, by requests and by tokens a minute.

Cells and turns are the engine's (`engine/shares.py`): it gets the share of the key with every request.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Any

from stretto.engine.request import Summary
from stretto.server.http.errors import RETRY_SECONDS, ApiError
from stretto.server.http.state import Caller
from stretto.server.settings import NO_KEY_LIMITS, KeyLimits

MINUTE = 60
KINDS = ("prompt", "cached", "generated")  # of tokens


class KeyUse:
    """The requests and tokens of one key."""

    def __init__(self, label: str, limits: KeyLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self.label = label
        self.limits = limits
        self.n_now = 0  # requests under way, those that wait included
        self.n_requests = 0
        self.tokens: Counter[str] = Counter()  # by kind, of requests that have ended
        self.refused: Counter[str] = Counter()  # by the limit that was reached
        self._clock = clock
        self._minute: deque[tuple[int, int]] = deque()  # (second, tokens computed), the last minute's

    def enter(self, count_now: Callable[[], int] = lambda: 0) -> None:
        """Take a request on, or raise; `count_now` counts the tokens computed for those under way."""
        most = self.limits.requests
        if most is not None and self.n_now >= most:
            raise self._refuse("requests", f"{self.n_now} requests of this key are under way", RETRY_SECONDS)
        if self.limits.tokens is not None:
            used = self.used() + count_now()
            if used >= self.limits.tokens:
                told = f"{used:,} tokens were computed for this key within a minute"
                raise self._refuse("tokens", told, self._seconds_left(used))
        self.n_now += 1
        self.n_requests += 1

    def leave(self, summary: Summary | None) -> None:
        """Count a request that has ended, or was never started."""
        self.n_now -= 1
        if summary is None:
            return
        computed = max(0, summary.prompt_tokens - summary.cached_tokens)
        self.count(prompt=computed, cached=summary.cached_tokens, generated=summary.tokens)

    def count(self, prompt: int = 0, cached: int = 0, generated: int = 0) -> None:
        """Count tokens by kind; those that were found in the cache were not computed."""
        self.tokens.update(prompt=prompt, cached=cached, generated=generated)
        second, n = int(self._clock()), prompt + generated
        if self._minute and self._minute[-1][0] == second:  # one entry a second
            n += self._minute.pop()[1]
        self._minute.append((second, n))
        self.used()

    def used(self) -> int:
        """Tokens computed within the last minute, for requests that have ended."""
        first = self._clock() - MINUTE
        while self._minute and self._minute[0][0] < first:
            self._minute.popleft()
        return sum(n for _, n in self._minute)

    def _seconds_left(self, used: int) -> int:
        """Seconds until the tokens of a minute are fewer than allowed again, if no more come."""
        for second, n in self._minute:
            used -= n
            if used < (self.limits.tokens or 0):
                return max(1, int(second + MINUTE - self._clock()) + 1)
        return RETRY_SECONDS  # requests that run have them

    def _refuse(self, limit: str, told: str, seconds: int) -> ApiError:
        self.refused[limit] += 1
        message = f"{limit}: {told}, and it may have {getattr(self.limits, limit):,}; try again later"
        return ApiError(429, message, param=limit, code="key_limit", retry_after=seconds)

    def facts(self) -> dict[str, Any]:
        """How the key stands, for the page."""
        limits = {name: value for name, value in vars(self.limits).items() if value is not None}
        return {
            "key": self.label,
            "requests": self.n_now,
            "tokens": self.used(),
            "refused": self.refused.total(),
            "limits": limits,
        }


class Keys:
    """The use of all keys."""

    def __init__(self) -> None:
        self._uses: dict[str, KeyUse] = {}  # by the names of their callers

    def of(self, caller: Caller) -> KeyUse:
        """The use of a caller's key."""
        if caller.name not in self._uses:
            self._uses[caller.name] = KeyUse(caller.label or "nobody", caller.limits)
        return self._uses[caller.name]

    def shown(self, caller: Caller) -> Iterator[KeyUse]:
        """The keys that a caller may see: its own, all for an admin; nothing where there are none."""
        for name, use in sorted(self._uses.items(), key=lambda item: item[1].label):
            if (caller.admin or name == caller.name) and (name or use.limits != NO_KEY_LIMITS):
                yield use
