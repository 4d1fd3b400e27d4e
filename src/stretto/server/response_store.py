"""Responses that are kept, so that others can go on with them: bounded for each caller, oldest out first.

What is kept are items and answers as JSON, in memory. The tokens behind them stay in the prefix cache as
those of any request do, so going on with a response computes only what is new, as long as they are there.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from stretto.server.errors import ApiError
from stretto.server.settings import RequestLimits


@dataclass(frozen=True)
class Kept:
    """A response, the items of its own input, and those of the conversation up to its end."""

    response: dict[str, Any]
    inputs: tuple[Any, ...]
    items: tuple[Any, ...]
    n_bytes: int  # of the conversation and the response, as JSON


class ResponseStore:
    """The responses of all callers; each finds its own only."""

    def __init__(self, limits: RequestLimits) -> None:
        self._limits = limits
        self._kept: dict[str, OrderedDict[str, Kept]] = {}  # by caller and id, the least recently used first

    def save(self, caller: str, kept: Kept) -> None:
        """Keep a response; the oldest of its caller make room for it."""
        own = self._kept.setdefault(caller, OrderedDict())
        own[kept.response["id"]] = kept
        while len(own) > self._limits.responses or _n_bytes(own) > self._limits.response_bytes:
            own.popitem(last=False)

    def find(self, caller: str, name: str, param: str) -> Kept:
        """A response by its id; raises if the caller has none with it, or not any more."""
        own = self._kept.get(caller, OrderedDict())
        if name not in own:
            message = (
                f"{param}: there is no response {name[:64]!r}; it was not stored, or too many came after it"
            )
            raise ApiError(404, message, param=param, code="not_found")
        own.move_to_end(name)
        return own[name]

    def names(self, most: int) -> list[str]:
        """The ids of so many responses, those of each caller from the latest on; any thread may ask."""
        for _ in range(8):
            try:
                own = [list(reversed(kept)) for kept in list(self._kept.values())]
            except RuntimeError:  # one was stored in this moment
                continue
            return [name for row in zip_longest(*own) for name in row if name is not None][:most]
        return []

    def remove(self, caller: str, name: str) -> None:
        """Forget a response."""
        self.find(caller, name, "response_id")
        del self._kept[caller][name]


def _n_bytes(own: OrderedDict[str, Kept]) -> int:
    return sum(kept.n_bytes for kept in own.values())
