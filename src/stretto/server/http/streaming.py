"""Long answers: written as JSON in a thread and piece by piece, so that others get their turn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any, Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from stretto.server.generation.generation import Generation, gone
from stretto.server.http.errors import CLIENT_GONE, ERROR_STATUS, ApiError, Json, dumps, translate

PIECE_VALUES = 4096  # written at a time, in a few milliseconds


async def long_json(content: Any, n_values: int) -> Response:
    """An answer in JSON with about so many values."""
    if n_values <= PIECE_VALUES:
        return Json(content)
    body = await asyncio.to_thread(lambda: pieces(content).encode())
    return Response(body, media_type=Json.media_type)


def pieces(value: Any) -> str:
    """`dumps`, by many calls instead of one; nothing else runs while one does."""
    if isinstance(value, dict):
        return "{" + ",".join([f"{dumps(name)}:{pieces(inner)}" for name, inner in value.items()]) + "}"
    if not isinstance(value, list) or not value:
        return dumps(value)
    n = PIECE_VALUES
    if isinstance(value[0], (dict, list)):
        inner = value[0].values() if isinstance(value[0], dict) else value[0]
        if any(isinstance(one, (dict, list)) for one in inner) or len(inner) > PIECE_VALUES:
            return "[" + ",".join([pieces(inner) for inner in value]) + "]"
        n = PIECE_VALUES // max(1, len(inner))  # small records are written together
    return "[" + ",".join([dumps(value[at : at + n])[1:-1] for at in range(0, len(value), n)]) + "]"


# Answers that are sent piece by piece, for as long as the client reads them; and server-sent events.

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


# Streamed answers.
#
# A chunk is sent after every step that has new tokens: the engine wakes the event loop once for all
# streams, and chunks go to the connection directly, past the middleware.

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


# Server-sent events, as long as the client reads them.


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


# Lines of JSON, as long as the client reads them: progress in Ollama's form.

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
