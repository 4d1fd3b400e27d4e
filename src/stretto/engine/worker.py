"""A thread that steps the engine for callers who cannot do it themselves: those of `asyncio`, and a server.

It starts with the first such request and ends when there has been none for a while.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from stretto.engine.request import Request

if TYPE_CHECKING:
    from stretto.engine.aio import News
    from stretto.engine.engine import Engine

PATIENCE = 5.0  # seconds without work after which the thread ends
COURTESY = 0.002  # seconds between two steps, at most, in which those who arrive can have the engine's lock


class Worker:
    """Steps the engine while any of its requests has not finished."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._requests: list[Request] = []
        self._news = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._arriving = 0  # threads that are making requests
        self.hurry = np.zeros(1, np.uint8)  # whether there are any: the fused loop looks at it
        self._stepping = 0  # our thread's number while it is in a step
        self._told: set[News] = set()  # by this step

    @contextmanager
    def arriving(self) -> Iterator[None]:
        """Requests are being made. That needs the engine's lock, for which they would lose race after race
        against a thread that takes it again as soon as it has let it go; and a fused loop ends early."""
        with self._news:
            self._arriving += 1
            self.hurry[0] = 1
        try:
            yield
        finally:
            with self._news:
                self._arriving -= 1
                self.hurry[0] = self._arriving > 0
                self._news.notify()

    def add(self, groups: list[list[Request]]) -> None:
        """Queue the first of each group, which starts the others, and see to it that somebody steps."""
        self._engine.add(*(first for first, *_ in groups))
        with self._news:
            self._requests += [request for group in groups for request in group]
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._work, name="stretto", daemon=True)
                self._thread.start()
            self._news.notify()

    def tell(self, news: News) -> None:
        """Something has come for somebody in an event loop. What a step brings is told when it has ended:
        a loop wakes up for a step, not for every token of it."""
        if self._stepping == threading.get_ident():
            self._told.add(news)
        else:
            _tell((news,))

    def close(self, wait: bool = True) -> None:
        """End the thread, after the step that it is at; whoever is in a step cannot `wait` for it."""
        with self._news:
            self._closed = True
            self._news.notify()
            thread = self._thread
        if wait and thread is not None and thread is not threading.current_thread():
            thread.join()

    def _work(self) -> None:
        while self._wait():
            self._stepping = threading.get_ident()
            try:
                self._engine.step()
            except Exception as error:  # a step that fails, fails for all who are in it
                with self._engine.lock:
                    for request in self._engine.scheduler.running:
                        request.fail(error)
                    self._engine.scheduler.sweep()
            finally:
                self._stepping = 0
            if self._told:
                _tell(self._told)
                self._told = set()

    def _wait(self) -> bool:
        """Wait for work; False if there was none for too long, or never will be."""
        with self._news:
            self._requests = [request for request in self._requests if not request.finished]
            if self._arriving and self._requests:
                self._news.wait_for(lambda: not self._arriving, COURTESY)
            if not self._requests and not self._closed:
                self._news.wait(PATIENCE)
            if self._closed or not self._requests:
                self._thread = None
                return False
            return True


def _tell(several: Collection[News]) -> None:
    """Wake up those for whom something has come, each event loop once."""
    for loop in {news.loop for news in several}:
        mine = [news for news in several if news.loop is loop]
        try:
            loop.call_soon_threadsafe(_wake, mine)
        except RuntimeError:  # the loop is closed: nobody waits any more
            for news in mine:
                news.forget()


def _wake(several: Iterable[News]) -> None:
    for news in several:
        news.wake()
