"""Short reads of an engine's tables, for threads that must not wait for its lock: an event loop, say.

A read is done at once if nothing has the lock; otherwise by the thread that steps, at the end of its step.
Where nobody reads, a step looks at an empty queue, and that is all.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future

Value = TypeVar("Value")


class Reads:
    """The reads that wait for the end of a step."""

    def __init__(self, lock: threading.RLock) -> None:
        self._lock = lock
        self.waiting: deque[tuple[Callable[[], Any], Future[Any]]] = deque()

    def ask(self, read: Callable[[], Value]) -> Future[Value]:
        """Have a function called under the lock, now or soon; it should copy, and nothing else.

        If another thread has the lock without stepping, only `poll` gets it done.
        """
        from concurrent.futures import Future

        future: Future[Value] = Future()
        self.waiting.append((read, future))
        self.poll()
        return future

    def poll(self) -> None:
        """Do the reads that wait, if nothing has the lock."""
        if self.waiting and self._lock.acquire(blocking=False):
            try:
                self.run()
            finally:
                self._lock.release()

    def run(self) -> None:
        """Do the reads that wait; the caller has the lock."""
        while self.waiting:
            read, future = self.waiting.popleft()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(read())
                except Exception as error:  # the reader's, not the step's
                    future.set_exception(error)

    def drop(self, future: Future[Any]) -> None:
        """Forget a read that nobody wants any more."""
        future.cancel()
        for entry in tuple(self.waiting):
            if entry[1] is future:
                with suppress(ValueError, IndexError):  # a step has just taken it
                    self.waiting.remove(entry)
