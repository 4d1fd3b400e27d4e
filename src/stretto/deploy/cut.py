"""Streams whose replica has died end with an error event, in Ray's Python proxy.

Ray calls `middlewares` in its proxies, by the name in RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH. When a
replica dies the proxy just stops sending; here the stream gets a last event, in the form of its protocol.
HAProxy has no place for such a thing: there a cut stream is an incomplete transfer.
"""

from __future__ import annotations

from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stretto.server.http.errors import ApiError, dumps, write_error
from stretto.server.http.streaming import EVENTS, LINES, event

REASON = ApiError(
    503, "the replica that gave this answer has ended; send the request again", code="replica_lost"
)
NAMED_EVENTS = ("/v1/messages", "/v1/responses")  # protocols whose events have names


def middlewares() -> list[Middleware]:
    """The middlewares of a proxy; Ray calls it when the proxy starts."""
    return [Middleware(EndCutStreams)]


class EndCutStreams:
    """An ASGI app around a proxy: ends a stream that has no end with an error event."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        open_kind = ""  # of a stream that has begun and not ended

        async def watched(message: Message) -> None:
            nonlocal open_kind
            if message["type"] == "http.response.start":
                open_kind = _kind(message)
            elif not message.get("more_body"):
                open_kind = ""
            await send(message)

        await self._app(scope, receive, watched)
        if open_kind:
            last = last_event(scope["path"], open_kind)
            await send({"type": "http.response.body", "body": last, "more_body": False})


def last_event(path: str, kind: str) -> bytes:
    """The error as the last event of a stream.

    >>> last_event("/api/chat", LINES)
    b'{"error":"the replica that gave this answer has ended; send the request again"}\\n'
    """
    path = path[max(0, path.find("/v1/"), path.find("/api/")) :]  # without the route of the model
    if kind == LINES:
        return dumps(write_error(REASON, path)).encode() + b"\n"
    if path.startswith("/v1/responses"):
        body = {"type": "error", "code": REASON.code, "message": REASON.message, "param": None}
    else:
        body = write_error(REASON, path)
    name = "event: error\n" if path.startswith(NAMED_EVENTS) else ""
    return (name + event(body)).encode()


def _kind(start: Message) -> str:
    """The kind of a stream; "" for any other answer."""
    for name, value in start["headers"]:
        if name.lower() == b"content-type":
            kind = value.decode("latin-1").partition(";")[0].strip()
            return kind if kind in (EVENTS, LINES) else ""
    return ""
