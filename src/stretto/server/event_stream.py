"""Server-sent events, as long as the client reads them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.types import Receive, Scope, Send

from stretto.server.open_response import DONE, OpenResponse, event


class EventStream(OpenResponse):
    """Sends each value of an iterator as an event, then `[DONE]`; `close` is called at the end, always."""

    def __init__(self, events: AsyncIterator[dict[str, Any]], close: Callable[[], None]) -> None:
        super().__init__()
        self._events = events
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the events or the client are gone."""
        await self.send_until(self._send(send), receive, self._close)

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for data in self._events:
            await send({"type": "http.response.body", "body": event(data).encode(), "more_body": True})
        await send({"type": "http.response.body", "body": DONE, "more_body": False})
