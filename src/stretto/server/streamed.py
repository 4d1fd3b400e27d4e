"""Answers that come in pieces.

A piece is sent for every step that has brought something, as soon as it is over: the engine wakes the event
loop once for all streams, and from there to the connection nothing is in the way.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from stretto.server.errors import ApiError, translate
from stretto.server.generation import Generation, gone

SLOW = 30.0  # seconds that a client may take, after the end, to read what it was sent
DIRECT = "stretto.send"  # where the guard has put the connection's own `send`


class Telling(Protocol):
    """How a stream is told: what is sent for news, in the end, and when something went wrong."""

    def more(self, news: Any) -> bytes:
        """What has come."""

    async def end(self) -> bytes:
        """All has come."""

    def failed(self, error: ApiError) -> bytes:
        """No more will come."""


class Streamed(Response):
    """A generation as it comes; whatever ends it, the generation is closed then.

    While pieces are awaited, the client is watched: when it goes away, so does the work.
    """

    def __init__(
        self, generation: Generation, news: AsyncIterator[Any], telling: Telling, media_type: str
    ) -> None:
        super().__init__(
            media_type=media_type, headers={"cache-control": "no-store", "x-accel-buffering": "no"}
        )
        del self.headers["content-length"]
        self._generation = generation
        self._news = news
        self._telling = telling
        self._seconds = generation.left

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send what comes."""
        work = asyncio.ensure_future(self._send(send, scope.get(DIRECT, send)))
        watch = asyncio.ensure_future(gone(receive))
        try:
            await asyncio.wait(
                (work, watch), timeout=self._seconds + SLOW, return_when=asyncio.FIRST_COMPLETED
            )
            if work.done():
                work.result()
        finally:
            watch.cancel()
            self._generation.close()  # at once: the next step frees the cells
            if not work.done():
                work.cancel()
                with suppress(BaseException):
                    await work

    async def _send(self, send: Send, direct: Send) -> None:
        """The head, the pieces and the end. What is around the app has to see only the first and the last."""
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        take, more = self._news.__anext__, self._telling.more
        while True:
            try:
                piece = more(await take())
            except StopAsyncIteration:
                last = await self._end()
                break
            except Exception as error:
                last = self._telling.failed(translate(error))
                break
            if piece:
                await direct({"type": "http.response.body", "body": piece, "more_body": True})
        self._generation.close()
        await send({"type": "http.response.body", "body": last, "more_body": False})

    async def _end(self) -> bytes:
        try:
            await self._generation.finish()
            return await self._telling.end()
        except Exception as error:
            return self._telling.failed(translate(error))
