"""What all requests of a server share."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from types import TracebackType
from typing import Protocol

from fastapi import Request

from stretto.errors import QueueFull
from stretto.server.registry import Opener, Registry
from stretto.server.settings import Settings

AT_ONCE = 4  # embeddings and scores that are computed; each has a thread, and others need some too


class Turns:
    """Some at a time, in the order in which they come; when too many wait, others are told to come later.

    async with turns:
        ...
    """

    def __init__(self, at_once: int, max_waiting: int) -> None:
        self._free = asyncio.Semaphore(at_once)
        self._max_waiting = max_waiting
        self._waiting = 0

    async def __aenter__(self) -> None:
        if self._free.locked() and self._waiting >= self._max_waiting:
            said = f"{self._waiting} requests wait already, and max_queue is {self._max_waiting}"
            raise QueueFull(f"{said}; try again later")
        self._waiting += 1
        try:
            await self._free.acquire()
        finally:
            self._waiting -= 1

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._free.release()


class Traffic:
    """Counters of requests and answers; the guard updates them."""

    def __init__(self) -> None:
        self.stopping = False  # new requests are refused
        self.active = 0  # requests under way
        self.body_bytes = 0  # of all bodies in memory
        self.answered: Counter[tuple[str, int]] = Counter()  # by route and status


class Running(Protocol):
    """The part of a generation that the server itself uses."""

    n_images: int

    def stop(self) -> None:
        """Cancel its texts."""


class State:
    """Settings, models, and the texts that are on their way."""

    def __init__(self, settings: Settings, opener: Opener | None = None) -> None:
        self.settings = settings
        self.registry = Registry(settings, opener)
        self.generations: set[Running] = set()
        self.turns = Turns(AT_ONCE, settings.max_queue)  # of what the engine's own queue does not know
        self.traffic = Traffic()
        self.started = time.time()

    def stop(self) -> None:
        """Take nobody new."""
        self.traffic.stopping = True

    def cancel_all(self) -> None:
        """End all texts that are on their way."""
        for generation in list(self.generations):
            generation.stop()


def state_of(request: Request) -> State:
    """The state of the server that a request came to."""
    state: State = request.app.state.stretto
    return state
