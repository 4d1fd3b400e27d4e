"""Which tokens go into the next forward pass: first come, first served.

A request is admitted when its prompt fits into the free cells. When the cells run out while decoding, the
youngest request gives its cells back and waits; its tokens are kept, and computed again later.
"""

from __future__ import annotations

from collections import deque

from stretto.engine.request import Request
from stretto.engine.sequence import Sequence
from stretto.errors import CacheFull


class Scheduler:
    """The queue of waiting requests and the list of running ones, oldest first."""

    def __init__(self) -> None:
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []

    def add(self, request: Request) -> None:
        """Put a request at the end of the queue."""
        self.waiting.append(request)

    def schedule(self, n_free: int, room: int) -> list[tuple[Sequence, int]]:
        """The sequences of the next pass and how many pending tokens of each; at most `room` in all."""
        self.sweep()
        wanted = [request.sequence.n_pending for request in self.running]
        free = n_free - sum(wanted)
        while self.waiting and (not self.running or self.waiting[0].sequence.n_pending <= free):
            request = self.waiting.popleft()
            wanted.append(request.sequence.n_pending)
            free -= wanted[-1]
            self.running.append(request)
        work = []
        for request, n in zip(self.running, wanted, strict=True):
            n = min(n, room)
            if n:
                work.append((request.sequence, n))
                room -= n
        return work

    def ready(self) -> list[Request]:
        """Running requests whose logits are there."""
        return [r for r in self.running if r.sequence.ready and not (r.finished or r.busy)]

    def make_room(self, error: CacheFull) -> None:
        """Send the youngest request back to the queue; the last one left ends here."""
        youngest = self.running[-1]
        if len(self.running) > 1:
            self.running.pop().sequence.release()
            self.waiting.appendleft(youngest)
        elif youngest.tokens:
            youngest.finish("length", "cache full")
        else:
            youngest.fail(error)
        self.sweep()

    def sweep(self) -> None:
        """Let go of what has finished."""
        self.running = [request for request in self.running if not request.finished]
        while self.waiting and self.waiting[0].finished:
            self.waiting.popleft()

    def cancel_all(self) -> None:
        """End every request."""
        for request in (*self.running, *self.waiting):
            request.cancel()
        self.running, self.waiting = [], deque()
