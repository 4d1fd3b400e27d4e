"""Wakes the tasks of an event loop that wait for something to come."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncio import Future


class News:
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


def notify(several: Collection[News]) -> None:
    """Wake the tasks for which something has come, each event loop once; from any thread."""
    for loop in {news.loop for news in several}:
        mine = [news for news in several if news.loop is loop]
        try:
            loop.call_soon_threadsafe(_wake, mine)
        except RuntimeError:  # the loop is closed: its tasks are gone
            for news in mine:
                news.forget()


def _wake(several: Iterable[News]) -> None:
    for news in several:
        news.wake()
