"""What comes before a request is one: its head, limited in size and time."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from stretto.server.settings import RequestLimits

_BODY = (
    b'{"error":{"message":"the headers are too large; send fewer or shorter ones",'
    b'"type":"invalid_request_error","param":null,"code":"headers_too_large"}}'
)
_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/json\r\n"
    b"connection: close\r\ncontent-length: %d\r\n\r\n%b" % (len(_BODY), _BODY)
)


def protocol(limits: RequestLimits) -> type[HttpToolsProtocol]:
    """uvicorn's protocol with limits on what comes before the body."""

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
            if self._in_head and self._head > limits.head and not self.transport.is_closing():
                self.transport.write(_TOO_LARGE)
                self.transport.close()

        def on_headers_complete(self) -> None:
            self._stop()
            self._in_head, self._head = False, 0
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
            if not self.transport.is_closing():
                self.transport.close()

    return LimitedProtocol
