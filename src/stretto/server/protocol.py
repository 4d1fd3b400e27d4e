"""uvicorn's HTTP protocol with limits: connections in number, request heads in size and time."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from stretto.server.errors import ApiError, body_of, dumps
from stretto.server.guard import CROWDED
from stretto.server.settings import RequestLimits


def _closing(status: str, message: str, code: str) -> bytes:
    """The answer to a refused request head, and the last on its connection."""
    body = dumps(body_of(ApiError(400, message, code=code), "/v1/")).encode()
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\nconnection: close\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


TOO_LARGE = _closing(
    "431 Request Header Fields Too Large",
    "the headers are too large; send fewer or shorter ones",
    "headers_too_large",
)
TOO_SLOW = _closing("408 Request Timeout", "the headers took too long to come", "headers_too_slow")


def protocol(limits: RequestLimits) -> type[HttpToolsProtocol]:
    """uvicorn's protocol with limits on connections and heads."""

    class LimitedProtocol(HttpToolsProtocol):
        """Counts bytes and seconds until the head is complete."""

        _head = 0  # bytes of the head that is coming
        _in_head = True
        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._expect()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self._in_head:
                self._head += len(data)
                if self._timer is None:
                    self._expect()
            super().data_received(data)
            # A body that comes with its head is not counted: by now the head is complete.
            if self._in_head and self._head > limits.head:
                self._refuse(TOO_LARGE)

        def on_headers_complete(self) -> None:
            self._stop()
            self._in_head, self._head = False, 0
            scope: dict[str, Any] = self.scope  # type: ignore[assignment]  # servers may put theirs there
            scope[CROWDED] = len(self.connections) > limits.connections
            super().on_headers_complete()

        def on_message_complete(self) -> None:
            self._in_head = True
            super().on_message_complete()

        def _expect(self) -> None:
            self._timer = self.loop.call_later(limits.head_seconds, self._too_late)

        def _stop(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _too_late(self) -> None:
            self._timer = None
            self._refuse(TOO_SLOW if self._head else b"")

        def _refuse(self, answer: bytes) -> None:
            if not self.transport.is_closing():
                self.transport.write(answer)
                self.transport.close()

    return LimitedProtocol
