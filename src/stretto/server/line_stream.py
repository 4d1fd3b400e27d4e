"""Lines of JSON, as long as the client reads them: progress in Ollama's form."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.types import Receive, Scope, Send

from stretto.server.errors import dumps
from stretto.server.open_response import OpenResponse

LINES = "application/x-ndjson"


class LineStream(OpenResponse):
    """Sends each value of an iterator as a line; `close` is called at the end, always."""

    def __init__(
        self, values: AsyncIterator[dict[str, Any]], close: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(LINES)
        self._values = values
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the values or the client are gone."""
        await self.send_until(self._send(send), receive, self._close)

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for value in self._values:
            line = (dumps(value) + "\n").encode()
            await send({"type": "http.response.body", "body": line, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
