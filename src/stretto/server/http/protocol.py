"""uvicorn's HTTP protocol with limits: connections in number, heads and trailers in size, all of it in time.

A connection always has a timer, or a request that is being answered, which has one of its own: for the head
that is to come, for the next request (uvicorn's), or for a client that does not read its answer.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from stretto.server.http.errors import ApiError, dumps, write_error
from stretto.server.http.guard import CROWDED
from stretto.server.settings import RequestLimits

# File descriptors: enough for all connections and some more, so that a full server answers 429.
#
# Without a descriptor a connection cannot even be accepted: its client sees a timeout or a reset.

log = logging.getLogger("stretto.server")

SPARE_CONNECTIONS = 64  # over the limit, to tell clients so: as many with a request, as many without
RESERVED_DESCRIPTORS = 256  # of those for connections above the limit, and for models, images, libraries
MIN_CONNECTIONS = 16


def with_descriptors(limits: RequestLimits) -> RequestLimits:
    """Raise the process's limit of descriptors as needed; if that fails, allow fewer connections."""
    try:
        import resource  # not on Windows
    except ImportError:
        return limits
    wanted = limits.connections + RESERVED_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return limits
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    except (OSError, ValueError):
        most = soft
    if most >= wanted:
        return limits
    n = max(MIN_CONNECTIONS, most - RESERVED_DESCRIPTORS)
    log.warning("the process may open %d files only: at most %d connections are served", most, n)
    return replace(limits, connections=min(n, limits.connections))


LINGER_SECONDS = 1.0  # for a refused client to read why; closing at once may reset the connection
MAX_PIPELINED = 16  # requests that wait on one connection for their turn


def _closing(status: str, message: str, code: str, extra: str = "") -> bytes:
    """The answer to a refused request head, and the last on its connection."""
    body = dumps(write_error(ApiError(400, message, code=code), "/v1/")).encode()
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\nconnection: close\r\n{extra}"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


TOO_LARGE = _closing(
    "431 Request Header Fields Too Large",
    "the headers are too large; send fewer or shorter ones",
    "headers_too_large",
)
TOO_SLOW = _closing("408 Request Timeout", "the headers took too long to come", "headers_too_slow")
TOO_MANY = _closing(
    "429 Too Many Requests",
    "there are too many connections; try again later",
    "too_many_connections",
    "retry-after: 1\r\n",
)


def protocol(limits: RequestLimits) -> type[HttpToolsProtocol]:
    """uvicorn's protocol with limits on connections and heads."""

    class LimitedProtocol(HttpToolsProtocol):
        """Counts bytes and seconds until the head is complete, and bytes that are no part of a body."""

        _received = 0  # bytes since the head began, those of a body behind it included
        _head = 0  # bytes of the head
        _trailers = 0  # bytes of those that are complete
        _idle = 0  # bytes behind the head that brought nothing of the body: trailers, extensions of chunks
        _in_head = True
        _has_body = False  # the last bytes brought some of it
        _is_refused = False
        _timer: asyncio.TimerHandle | None = None  # for the head, or for a refused client
        _unread: asyncio.TimerHandle | None = None  # while the client does not read

        # -- connections --

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            n_over = len(self.connections) - limits.connections - SPARE_CONNECTIONS
            if n_over > 0:
                self._refuse(TOO_MANY, linger=n_over <= SPARE_CONNECTIONS)
            else:
                self._expect()

        def connection_lost(self, exc: Exception | None) -> None:
            self.stop()
            self.stop_unread()
            super().connection_lost(exc)

        # -- requests --

        def data_received(self, data: bytes) -> None:
            if self._is_refused:
                return
            in_head, self._has_body = self._in_head, False
            if in_head:
                self._received += len(data)
                if self._timer is None:
                    self._expect()
            super().data_received(data)
            if self._in_head:
                # A body that comes with its head is not counted: by now the head is complete.
                is_over = self._received > limits.head
            else:
                self._idle = 0 if in_head or self._has_body else self._idle + len(data)
                is_over = self._idle > limits.head
            if is_over:
                self._refuse(TOO_LARGE)

        def on_url(self, url: bytes) -> None:
            self._head += len(url)
            if self._head <= limits.head:
                super().on_url(url)

        def on_header(self, name: bytes, value: bytes) -> None:
            if not self._in_head:  # a trailer, which nobody asks for
                self._trailers += len(name) + len(value)
                if self._trailers > limits.head:
                    self._refuse(TOO_LARGE)
                return
            self._head += len(name) + len(value) + len(": \r\n")
            if self._head <= limits.head:
                super().on_header(name, value)

        def on_headers_complete(self) -> None:
            self.stop()
            is_over = self._head > limits.head
            self._in_head = False
            self._received = self._head = self._idle = self._trailers = 0
            if self._is_refused:
                return
            if is_over or len(self.pipeline) >= MAX_PIPELINED:
                self._refuse(TOO_LARGE if is_over else TOO_MANY)
                return
            scope: dict[str, Any] = self.scope  # type: ignore[assignment]  # servers may put theirs there
            scope[CROWDED] = len(self.connections) > limits.connections
            super().on_headers_complete()

        def on_body(self, body: bytes) -> None:
            self._has_body = True
            if not self._is_refused:
                super().on_body(body)

        def on_message_complete(self) -> None:
            self._in_head = True
            if not self._is_refused:
                super().on_message_complete()

        def on_response_complete(self) -> None:
            is_last = not self.pipeline
            super().on_response_complete()
            if is_last and not self._in_head:
                self.transport.close()  # the rest of the body is not waited for

        # -- time --

        def _expect(self) -> None:
            self._timer = self.loop.call_later(limits.head_seconds, self._too_late)

        def stop(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _too_late(self) -> None:
            self._timer = None
            if self.cycle is not None and not self.cycle.response_complete:
                self.cycle.keep_alive = False  # the answer before it is finished first
            else:
                self._refuse(TOO_SLOW if self._received else b"")

        def _refuse(self, answer: bytes, linger: bool = True) -> None:
            if self._is_refused or self.transport.is_closing():
                return
            self._is_refused = True
            self.stop()
            if self.cycle is not None:  # a request before this one gets no answer any more
                self.cycle.disconnected = True
                self.cycle.message_event.set()
            self.transport.write(answer)
            if answer and linger and self.transport.can_write_eof():
                self.transport.write_eof()
                self._timer = self.loop.call_later(LINGER_SECONDS, self.transport.abort)
            else:
                self.transport.close()

        def send_400_response(self, msg: str) -> None:
            if not self._is_refused:
                super().send_400_response(msg)

        # -- clients that do not read --

        def pause_writing(self) -> None:
            super().pause_writing()
            self._expect_reading()

        def resume_writing(self) -> None:
            super().resume_writing()
            self.stop_unread()
            if self.transport.is_closing():  # what is left has to be read too
                self._expect_reading()

        def timeout_keep_alive_handler(self) -> None:
            if self.transport.get_write_buffer_size():
                self.transport.abort()
            super().timeout_keep_alive_handler()

        def _expect_reading(self) -> None:
            self.stop_unread()
            self._unread = self.loop.call_later(limits.read_seconds, self.transport.abort)

        def stop_unread(self) -> None:
            if self._unread is not None:
                self._unread.cancel()
                self._unread = None

    return LimitedProtocol
