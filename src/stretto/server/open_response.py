"""Answers that are sent piece by piece, for as long as the client reads them; and server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from starlette.responses import Response
from starlette.types import Receive

from stretto.server.errors import dumps
from stretto.server.generation import gone

EVENTS = "text/event-stream"
DONE = b"data: [DONE]\n\n"


def event(data: Any) -> str:
    """Data as a server-sent event."""
    return f"data: {dumps(data)}\n\n"


class OpenResponse(Response):
    """A response whose length is not known when it begins."""

    def __init__(self, media_type: str = EVENTS) -> None:
        super().__init__(
            media_type=media_type, headers={"cache-control": "no-store", "x-accel-buffering": "no"}
        )
        del self.headers["content-length"]

    async def send_until(
        self,
        work: Awaitable[None],
        receive: Receive,
        close: Callable[[], None],
        *ends: Awaitable[Any],
        timeout: float | None = None,
    ) -> None:
        """Do the sending until it is done, the client has disconnected, one of `ends` has come, or in time.

        `close` is called at once then, whatever the reason; work that is not done is cancelled behind it.
        """
        task = asyncio.ensure_future(work)
        others = [asyncio.ensure_future(gone(receive)), *map(asyncio.ensure_future, ends)]
        try:
            await asyncio.wait((task, *others), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                task.result()
        finally:
            for other in others:
                other.cancel()
            close()
            if not task.done():
                task.cancel()
                with suppress(BaseException):
                    await task
