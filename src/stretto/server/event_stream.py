"""Server-sent events, as long as the client reads them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from stretto.server.errors import dumps
from stretto.server.generation import gone


class EventStream(Response):
    """Sends each value of an iterator as an event, then `[DONE]`; `close` is called at the end, always."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[dict[str, Any]], close: Callable[[], None]) -> None:
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the events or the client are gone."""
        work = asyncio.ensure_future(self._send(send))
        watch = asyncio.ensure_future(gone(receive))
        try:
            await asyncio.wait((work, watch), return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
        finally:
            self._close()
            watch.cancel()
            work.cancel()
            with suppress(BaseException):
                await work

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for event in self._events:
            body = f"data: {dumps(event)}\n\n".encode()
            await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": False})
