"""A model's cells as those who watch it see them: one mirror of the table, a lens for each caller."""

from __future__ import annotations

import time
from collections.abc import Iterable

from stretto.cache.following import Follower
from stretto.llm import LLM
from stretto.server.callers import Caller
from stretto.server.errors import dumps
from stretto.server.frames import Lens, empty_frame
from stretto.server.mirror import Mirror
from stretto.server.reading import soon
from stretto.server.running import owned
from stretto.server.slots import Slot
from stretto.server.state import State


class Following:
    """The cells of a model, loaded or not: `look` while somebody watches, then `event` for each reader."""

    def __init__(self, state: State, slot: Slot) -> None:
        self._state = state
        self._slot = slot
        self._llm: LLM | None = None
        self._follower, self._mirror = Follower(), Mirror(0)
        self._lenses: dict[Caller, Lens] = {}
        # Versions go on from those of any Following before, so that readers who come back can say theirs.
        self._version = int(1000 * time.time())
        self._events: dict[tuple[Caller, int], str] = {}  # of this version

    async def look(self, callers: Iterable[Caller]) -> float:
        """See what has changed, for these callers; returns the CPU time of all of it."""
        llm = self._slot.llm if isinstance(self._slot.llm, LLM) else None
        if llm is not self._llm:
            self._llm, self._follower, self._mirror, self._lenses = llm, Follower(), Mirror(0), {}
            self._next_version()
        if llm is None:
            return 0.0
        copied = await soon(llm, llm.cells.copied(self._follower))
        begun = time.thread_time()
        changed = self._mirror.apply(copied)
        wanted = set(callers)
        self._lenses = {caller: lens for caller, lens in self._lenses.items() if caller in wanted}
        for caller in wanted:
            lens = self._lenses.get(caller)
            if lens is None:
                lens = self._lenses[caller] = Lens(self._slot.name, caller.admin)
            is_mine = owned(self._state, caller, self._mirror.salts)
            if lens.update(self._mirror, changed, self._version + 1, is_mine):
                self._next_version()
        return copied.seconds + time.thread_time() - begun

    def event(self, caller: Caller, since: int) -> tuple[int, str]:
        """The version of a caller's cells and the frame for a reader that has another one; "" if it has this.

        Readers with the same caller and version get the same text, made once.
        """
        if self._llm is None:
            frame = "" if since == self._version else dumps({"cells": self._nothing()})
            return self._version, frame
        lens = self._lenses.get(caller)
        if lens is None or since == lens.version:
            return since, ""
        key = caller, since
        if key not in self._events:
            self._events[key] = dumps({"cells": lens.frame(since)})
        return lens.version, self._events[key]

    def _nothing(self) -> dict[str, object]:
        return empty_frame(self._slot.name, self._version)

    def _next_version(self) -> None:
        self._version += 1
        self._events.clear()
