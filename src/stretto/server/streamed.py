"""Streamed answers.

A chunk is sent after every step that has new tokens: the engine wakes the event loop once for all streams,
and chunks go to the connection directly, past the middleware.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Protocol

from starlette.types import Receive, Scope, Send

from stretto.server.errors import CLIENT_GONE, ERROR_STATUS, ApiError, translate
from stretto.server.generation import Generation
from stretto.server.open_response import OpenResponse

DRAIN_SECONDS = 30.0  # that a client may take after the end to read the rest
DIRECT = "stretto.send"  # key in a scope: the connection's own `send`, set by the guard


class StreamFormat(Protocol):
    """Formats a stream as bytes."""

    def more(self, news: Any) -> bytes:
        """The chunks of new tokens."""

    async def end(self) -> bytes:
        """The last chunk."""

    def failed(self, error: ApiError) -> bytes:
        """The last chunk after an error."""


class Streamed(OpenResponse):
    """Streams a generation; closes it at the end, whatever the reason.

    Meanwhile the connection is watched: if the client disconnects, the generation is cancelled.
    """

    def __init__(
        self, generation: Generation, news: AsyncIterator[Any], stream_format: StreamFormat, media_type: str
    ) -> None:
        super().__init__(media_type)
        self._generation = generation
        self._news = news
        self._format = stream_format
        self._seconds = generation.left
        self._is_done = False  # all of it was sent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the chunks."""
        work = self._send(send, scope.get(DIRECT, send))
        # The generation is closed at once: the next step frees the cells.
        await self.send_until(work, receive, self._generation.close, timeout=self._seconds + DRAIN_SECONDS)
        if not self._is_done:
            self._generation.note(**{"error": "client_gone", ERROR_STATUS: CLIENT_GONE})

    async def _send(self, send: Send, direct: Send) -> None:
        """Send the head, the chunks and the end. Only the first and the last pass through the middleware."""
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        take, more = self._news.__anext__, self._format.more
        while True:
            try:
                piece = more(await take())
            except StopAsyncIteration:
                last = await self._end()
                break
            except Exception as error:
                last = self._failed(error)
                break
            if piece:
                await direct({"type": "http.response.body", "body": piece, "more_body": True})
        self._generation.close()
        await send({"type": "http.response.body", "body": last, "more_body": False})
        self._is_done = True

    async def _end(self) -> bytes:
        try:
            await self._generation.finish()
            return await self._format.end()
        except Exception as error:
            return self._failed(error)

    def _failed(self, error: Exception) -> bytes:
        found = translate(error)
        self._generation.note_error(found)
        return self._format.failed(found)
