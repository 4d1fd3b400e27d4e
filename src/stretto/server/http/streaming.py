"""Answers that are sent piece by piece, for as long as the client reads them; and server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stretto.server.http.errors import dumps, gone

EVENTS = "text/event-stream"
DONE = b"data: [DONE]\n\n"
DIRECT = "stretto.send"  # key in a scope: the connection's own `send`, set by the guard


def event(data: Any) -> str:
    """Data as a server-sent event."""
    return f"data: {dumps(data)}\n\n"


async def ask_app(
    app: ASGIApp, request: Scope, body: bytes = b""
) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    """The status, headers and body of an app's answer to a request that no client has sent.

    `request` is the scope, of which all that is usual may be left out.
    """
    start: Message = {"status": 500, "headers": ()}
    given, pieces = False, []

    async def receive() -> Message:
        nonlocal given
        if given:
            await asyncio.Event().wait()  # it never hangs up
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            start.update(message)
        pieces.append(message.get("body", b""))

    await app(_scope(request), receive, send)
    return start["status"], [(name, value) for name, value in start["headers"]], b"".join(pieces)


async def open_app(app: ASGIApp, request: Scope) -> AsyncGenerator[Message, None]:
    """The messages of an app's answer as they come; closing the generator is a client that disconnects.

    `request` is as `ask_app` takes it, without a body.
    """
    messages: asyncio.Queue[Message | None] = asyncio.Queue()
    left = asyncio.Event()
    asked: list[Message] = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> Message:
        if asked:
            return asked.pop()
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        messages.put_nowait(message)

    async def run() -> None:
        try:
            await app(_scope(request), receive, send)
        finally:
            messages.put_nowait(None)

    task = asyncio.create_task(run())
    try:
        while (message := await messages.get()) is not None:
            yield message
        await task
    finally:
        left.set()
        await asyncio.wait((task,))


def _scope(request: Scope) -> Scope:
    usual: Scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http"}
    usual.update(root_path="", query_string=b"", headers=[], client=None, server=None)
    return {**usual, "raw_path": request["path"].encode(), **request}


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


# Values of an iterator, as long as the client reads them.

LINES = "application/x-ndjson"


class ValueStream(OpenResponse):
    """Sends each value as an event, then `[DONE]`; or as a line of JSON, as Ollama's clients read progress.

    `close` is called at the end, always.
    """

    def __init__(
        self,
        values: AsyncIterator[dict[str, Any]],
        close: Callable[[], None] = lambda: None,
        media_type: str = EVENTS,
    ) -> None:
        super().__init__(media_type)
        self._values = values
        self._close = close
        self._has_lines = media_type == LINES

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the values or the client are gone."""
        await self.send_until(self._send(send), receive, self._close)

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for value in self._values:
            text = f"{dumps(value)}\n" if self._has_lines else event(value)
            await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
        last = b"" if self._has_lines else DONE
        await send({"type": "http.response.body", "body": last, "more_body": False})
