"""What all requests of a server share."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from fastapi import Request

from stretto.server.registry import Opener, Registry
from stretto.server.settings import Settings

if TYPE_CHECKING:
    from stretto.server.generation import Generation
    from stretto.server.guard import Guard


class State:
    """Settings, models, and the texts that are on their way."""

    guard: Guard

    def __init__(self, settings: Settings, opener: Opener | None = None) -> None:
        self.settings = settings
        self.registry = Registry(settings, opener)
        self.generations: set[Generation] = set()
        self.started = time.time()

    def stop(self) -> None:
        """Take nobody new."""
        self.guard.stopping = True

    def cancel_all(self) -> None:
        """End all texts that are on their way."""
        for generation in list(self.generations):
            generation.stop()


def state_of(request: Request) -> State:
    """The state of the server that a request came to."""
    state: State = request.app.state.stretto
    return state
