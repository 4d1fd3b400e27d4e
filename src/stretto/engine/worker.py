"""A thread that steps the engine for callers that must not block: those of `asyncio`, and a server.

It starts with the first such request and ends when there has been none for a while.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any

from stretto.engine.engine import Engine
from stretto.engine.request import Request
from stretto.hardware import fork_safety
from stretto.hardware.limits import allowed_cpus

if TYPE_CHECKING:
    from asyncio import Future


# Wakes the tasks of an event loop that wait for something to come.


class LoopNotifier:
    """A flag that tasks of one event loop wait for."""

    def __init__(self) -> None:
        from asyncio import get_running_loop  # imported by all who run a loop, and by no others

        self.loop = get_running_loop()
        self.forget: Callable[[], None] = lambda: None  # called when the loop is found closed
        self._come = False
        self._waiting: list[Future[None]] = []
        self._taken = threading.Event()  # set while a task waits: all that had come was taken

    def wake(self) -> None:
        """Something has come; called in the loop."""
        self._come = True
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            if not one.done():
                one.set_result(None)

    async def wait(self) -> None:
        """Return when something has come since this returned last."""
        if not self._come:
            mine = self.loop.create_future()
            self._waiting.append(mine)
            self._taken.set()
            await mine
        self._come = False

    def hand_over(self, seconds: float) -> None:
        """Wake the tasks, and wait until one waits for more, so many `seconds` at most; from another thread.

        A task that has not taken yet what came before is slow, and not waited for.
        """
        was_taken = self._taken.is_set()
        self._taken.clear()
        notify((self,))
        if was_taken:
            self._taken.wait(seconds)


def notify(several: Collection[LoopNotifier]) -> None:
    """Wake the tasks for which something has come, each event loop once; from any thread."""
    for loop in {news.loop for news in several}:
        mine = [news for news in several if news.loop is loop]
        try:
            loop.call_soon_threadsafe(_wake, mine)
        except RuntimeError:  # the loop is closed: its tasks are gone
            for news in mine:
                news.forget()


def _wake(several: Iterable[LoopNotifier]) -> None:
    for news in several:
        news.wake()


IDLE_SECONDS = 5.0  # without work, after which the thread ends
HAND_OVER_SECONDS = 0.001  # for a token at most, until an event loop has taken it


class Worker:
    """Steps the engine while any of its requests has not finished."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._requests: list[Request[Any]] = []
        self._changed = fork_safety.condition()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._stepping = 0  # the thread's number while it is in a step
        self._told: set[LoopNotifier] = set()  # by this step
        self._n_cpus = len(allowed_cpus() or ()) or os.cpu_count() or 1
        fork_safety.abandon_in_child(self)

    def add(self, groups: list[list[Request[Any]]]) -> None:
        """Queue the first of each group, which starts the others, and have the thread step."""
        self._engine.add(*(first for first, *_ in groups))
        with self._changed:
            self._requests += [request for group in groups for request in group]
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._work, name="stretto", daemon=True)
                self._thread.start()
            self._changed.notify()

    def cancel(self, groups: list[list[Request[Any]]]) -> None:
        """End requests that were refused: the first of each group ends the others."""
        with self._engine.lock:
            for first, *_ in groups:
                first.cancel()

    def tell(self, news: LoopNotifier) -> None:
        """Notify a task of an event loop: at the end of a step, once for all its tokens; at once where tokens
        come one by one. A task takes such a token before the backend uses all processors for the next."""
        if self._stepping != threading.get_ident():
            notify((news,))
        elif not self._engine.is_looping:
            self._told.add(news)
        elif self._engine.runner.backend.active_threads >= self._n_cpus:
            news.hand_over(HAND_OVER_SECONDS)
        else:
            notify((news,))

    def close(self, wait: bool = True) -> None:
        """End the thread after the present step; a caller within a step cannot `wait` for it."""
        with self._changed:
            self._closed = True
            self._changed.notify()
            thread = self._thread
        if wait and thread is not None and thread is not threading.current_thread():
            thread.join()

    def abandon(self) -> None:
        """Forget the thread, which a forked child does not have."""
        self._closed = True
        self._thread, self._stepping = None, 0
        self._requests, self._told = [], set()

    def _work(self) -> None:
        engine = self._engine
        while self._wait():
            self._stepping = threading.get_ident()
            try:
                engine.step()
            except Exception as error:  # a step that fails, fails for all requests in it
                with engine.lock:
                    for request in engine.scheduler.running:
                        request.fail(error)
                    engine.scheduler.sweep()
            finally:
                self._stepping = 0
            if self._told:
                notify(self._told)
                self._told = set()

    def _wait(self) -> bool:
        """Wait for work; False if there was none for too long, or never will be."""
        if self._requests:
            self._engine.arrivals.hand_over()
        with self._changed:
            self._requests = [request for request in self._requests if not request.finished]
            if not self._requests and not self._closed:
                self._changed.wait(IDLE_SECONDS)
            if self._closed or not self._requests:
                self._thread = None
                return False
            return True
