"""Memory that large bodies leave free, given back to the system once no more of them come.

The allocator keeps freed memory for the next request. That is right while bodies come; after many of them
the process would stay nearly as large as it was at most, though nothing is in that memory.
"""

from __future__ import annotations

import asyncio
import ctypes
from contextlib import suppress

LARGE_BYTES = 1 << 16  # of a body; smaller ones leave little
QUIET_SECONDS = 2.0  # without large bodies, after which free memory is given back


class SpareMemory:
    """Returns free memory some time after the last large body. Used by one event loop alone."""

    def __init__(self) -> None:
        self._last = 0.0  # when a large body was released, by the loop's clock
        self._is_waiting = False  # for the quiet after it

    def note(self, nbytes: int) -> None:
        """A body of so many bytes was released."""
        if nbytes < LARGE_BYTES:
            return
        loop = asyncio.get_running_loop()
        self._last = loop.time()
        if not self._is_waiting:
            self._is_waiting = True
            loop.call_later(QUIET_SECONDS, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        left = self._last + QUIET_SECONDS - loop.time()
        if left > 0:
            loop.call_later(left, self._look, loop)
        else:
            self._is_waiting = False
            loop.run_in_executor(None, trim)


def trim() -> None:
    """Give free memory back to the system, where the C library can (glibc). Other threads run meanwhile."""
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
