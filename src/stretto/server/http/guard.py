"""The guard: admission checks before the app, and request ids and logging after it.

Checked in this order: the server is not shutting down and not full; the API key is right; the Host and Origin
headers are allowed; the body is within its limits. The app gets every body in one piece, as JSON, but for
files of `/api/blobs`, which it reads as they come. An answer that is sent before all of the body has come
closes the connection: nobody waits for the rest of it.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from itertools import count
from secrets import token_hex
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stretto.engine.limits import CURRENT_SHARE
from stretto.errors import InvalidRequest
from stretto.server.generation.generation import REQUEST_ID
from stretto.server.http.errors import CLIENT_GONE, ERROR_STATUS, ApiError, answer, note_error, translate
from stretto.server.http.hosts import (
    answer_headers,
    check_origin,
    is_literal,
    is_loopback,
    is_wide,
    parse_host,
    preflight_headers,
)
from stretto.server.http.logs import log_request
from stretto.server.http.state import CALLER, Caller, State
from stretto.server.http.streaming import DIRECT

# Memory that large bodies leave free, given back to the system once no more of them come.
#
# The allocator keeps freed memory for the next request. That is right while bodies come; after many of them
# the process would stay nearly as large as it was at most, though nothing is in that memory.

LARGE_BYTES = 1 << 16  # of a body; smaller ones leave little
QUIET_SECONDS = 2.0  # without large bodies, after which free memory is given back


class SpareMemory:
    """Returns free memory some time after the last large body. Used by one event loop alone."""

    def __init__(self) -> None:
        self._last = 0.0  # when a large body was released, by the loop's clock
        self._is_waiting = False  # for the quiet after it

    def note(self, nbytes: int) -> None:
        """A body of so many bytes was released."""
        if nbytes < LARGE_BYTES:
            return
        loop = asyncio.get_running_loop()
        self._last = loop.time()
        if not self._is_waiting:
            self._is_waiting = True
            loop.call_later(QUIET_SECONDS, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        left = self._last + QUIET_SECONDS - loop.time()
        if left > 0:
            loop.call_later(left, self._look, loop)
        else:
            self._is_waiting = False
            loop.run_in_executor(None, trim)


def trim() -> None:
    """Give free memory back to the system, where the C library can (glibc). Other threads run meanwhile."""
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


LEFT_OUT = b"x-stretto-left-out"  # header of an answer: a part of the request that is not in the prompt
WARNING = b"x-stretto-warning"  # header of an answer to a request of which fields were not granted

HEALTH = "/health"  # also without a Host header, as load balancers ask
OPEN_PATHS = (HEALTH, "/ping", "/docs", "/openapi.json")  # without a key
BODIES = ("POST", "PUT", "PATCH", "DELETE")  # methods whose requests have bodies
KNOWN_METHODS = ("GET", "HEAD", "POST", "DELETE", "OPTIONS")
FORM_PATHS = (
    "/v1/audio/transcriptions",
    "/v1/files",
)  # whose bodies are forms with a file, as OpenAI has them
UPLOADS = "/api/blobs/"  # paths below read their bodies themselves, piece by piece
PAGE, PAGE_FILES = "/", "/page/"  # of the page: the path of itself, and of its files
CLOSE = (b"connection", b"close")
JSON_TYPE = (b"content-type", b"application/json")
CROWDED = "stretto.crowded"  # key in a scope: there are more connections than allowed


class Guard:
    """An ASGI app around the app."""

    def __init__(
        self, app: ASGIApp, state: State, paths: frozenset[str], open_paths: frozenset[str] = frozenset()
    ) -> None:
        self.app = app
        self.state = state
        self._settings = state.settings
        self._callers = state.callers
        self._traffic = state.traffic
        self._spare = SpareMemory()
        self._paths = paths  # that are counted one by one
        self._open_paths = open_paths.union(OPEN_PATHS)
        for path in self._settings.disabled:
            if not path or (path != PAGE and not any(is_below(known, path) for known in paths)):
                raise InvalidRequest(
                    f"--disable {path or repr(path)}: there is no such path here", param="disable"
                )
        self._is_local = self._settings.loopback
        self._numbers = count()
        self._prefix = token_hex(4)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        visit = _Visit(scope, send, f"req-{self._prefix}-{next(self._numbers)}")
        self._traffic.active += 1
        held, complete = 0, False
        try:
            headers = dict(scope["headers"])
            if scope.get(CROWDED):
                visit.extra.append(CLOSE)
            is_allowed = self._admit(scope, headers)
            CURRENT_SHARE.set(scope[CALLER].share)
            if self._settings.origins and await self._preflight(scope, headers, visit, is_allowed):
                return
            if scope["path"].startswith(UPLOADS):
                visit.extra.append(CLOSE)  # its answer may come before all of the body
            elif scope["method"] in BODIES:
                body = await self._body(headers, receive)
                held, complete = len(body), True
                if scope["path"] not in FORM_PATHS:
                    scope["headers"] = [*(h for h in scope["headers"] if h[0] != b"content-type"), JSON_TYPE]
                receive = whole(body, receive)
            scope[DIRECT] = send
            await self.app(scope, receive, visit.send)
        except asyncio.CancelledError:  # the server ends, and waits no longer
            visit.status = 503
            visit.notes["error"] = "shutting_down"
            raise
        except Exception as error:  # ours, or one that the app has answered and raised again
            await self._answer(error, visit, scope, receive, complete)
        finally:
            scope.pop(DIRECT, None)  # which refers to the scope: the two would wait for the garbage collector
            self._traffic.body_bytes -= held
            self._spare.note(held)
            self._traffic.active -= 1
            self._note(visit, scope.get(CALLER))

    async def _answer(
        self, error: Exception, visit: _Visit, scope: Scope, receive: Receive, complete: bool
    ) -> None:
        """Note an error, and send it unless an answer has begun.

        A method of its own: the frame that caught the error is in its traceback, and must not refer to it.
        """
        if not visit.begun or "error" not in visit.notes:
            found = translate(error)
            note_error(visit.notes, found)
        if not visit.begun:
            if not complete and scope["method"] in BODIES and CLOSE not in visit.extra:
                visit.extra.append(CLOSE)
            await answer(found, scope["path"])(scope, receive, visit.send)

    # -- admission --

    def _admit(self, scope: Scope, headers: dict[bytes, bytes]) -> bool:
        """Whether the page that asks is allowed; raises for all but its preflight request if it is not."""
        settings = self._settings
        if self._traffic.stopping:
            raise ApiError(503, "the server is shutting down", code="shutting_down", retry_after=5)
        if scope.get(CROWDED):
            message = f"there are more than {settings.limits.connections:,} connections; try again later"
            raise ApiError(429, message, code="too_many_connections", retry_after=1)
        is_open = scope["path"] in self._open_paths or scope["method"] == "OPTIONS"
        callers = self._callers
        keys = headers.get(b"authorization", b""), headers.get(b"x-api-key", b"")
        scope[CALLER] = callers.nobody if is_open else callers.find(*keys)
        if not callers.need_keys and scope["path"] != HEALTH:
            self._check_host(headers)
        self._check_enabled(scope["path"])
        origin = headers.get(b"origin")
        if origin is None:
            return True
        host, allowed = headers.get(b"host", b"").decode("latin-1"), settings.origins
        try:
            is_foreign = check_origin(origin.decode("latin-1"), host, allowed)
        except ApiError as error:
            if error.status == 403 and allowed and scope["method"] == "OPTIONS":
                return False
            raise
        if is_foreign and is_wide(allowed) and scope[CALLER] is callers.nobody:
            scope[CALLER] = replace(callers.nobody, admin=False)
        return True

    def _check_enabled(self, path: str) -> None:
        """Refuse what the operator has disabled: endpoints by 501, as llama-server does, the page by 404."""
        for off in self._settings.disabled:
            if off == PAGE and (path == PAGE or path.startswith(PAGE_FILES)):
                raise ApiError(404, "this server shows no page: it was started with --disable /")
            if off != PAGE and is_below(path, off):
                raise ApiError(
                    501,
                    f"this server does not serve {off}: it was started with --disable {off}",
                    code="disabled",
                )

    def _check_host(self, headers: dict[bytes, bytes]) -> None:
        """Without keys, refuse names that a web page may have given this machine."""
        settings, given = self._settings, headers.get(b"host", b"").decode("latin-1")
        host = parse_host(given)
        if host is None:
            raise ApiError(400, f"the Host header {given[:100]!r} is no host and port", code="invalid_host")
        known = is_loopback(host) if self._is_local else is_loopback(host) or is_literal(host)
        if not known and host not in settings.hosts:
            raise ApiError(
                421,
                f"this server does not answer to the name {host[:100]!r}; use its address, or --allow-host",
                code="wrong_host",
            )

    async def _preflight(
        self, scope: Scope, headers: dict[bytes, bytes], visit: _Visit, is_allowed: bool
    ) -> bool:
        """Add CORS headers for a browser; answers a preflight request and returns True for it.

        A page that is not allowed gets none of them: its browser asks no further, and says why.
        """
        origin = headers.get(b"origin")
        if origin is None:
            return False
        if is_allowed:
            visit.extra += answer_headers(origin)
        if scope["method"] != "OPTIONS":
            return False
        if is_allowed:
            visit.extra += preflight_headers(self._settings.origins)
        status = 200 if is_wide(self._settings.origins) else 204
        await visit.send({"type": "http.response.start", "status": status, "headers": []})
        await visit.send({"type": "http.response.body"})
        return True

    # -- body --

    async def _body(self, headers: dict[bytes, bytes], receive: Receive) -> bytes:
        limits = self._settings.limits
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > limits.body:
            raise self._too_large(int(length))
        pieces: list[bytes] = []
        n = 0
        deadline = time.monotonic() + limits.body_seconds
        try:
            while True:
                left = deadline - time.monotonic()
                try:
                    message = await asyncio.wait_for(receive(), max(left, 0.001))
                except asyncio.TimeoutError:
                    raise ApiError(
                        408, f"the body took longer than {limits.body_seconds:g} s to come"
                    ) from None
                if message["type"] != "http.request":
                    raise ApiError(400, "the body ended too early")
                piece = message.get("body", b"")
                n += len(piece)
                self._traffic.body_bytes += len(piece)
                if n > limits.body:
                    raise self._too_large(n)
                if self._traffic.body_bytes > limits.bodies:
                    raise ApiError(
                        429, "too much is being sent at once; try again", code="busy", retry_after=1
                    )
                pieces.append(piece)
                if not message.get("more_body"):
                    return b"".join(pieces)
        except BaseException:
            self._traffic.body_bytes -= n
            self._spare.note(n)
            raise

    def _too_large(self, n: int) -> ApiError:
        most = self._settings.limits.body
        return ApiError(
            413, f"the body has {n:,} bytes or more; at most {most:,} are taken", code="body_too_large"
        )

    # -- logging --

    def _note(self, visit: _Visit, caller: Caller | None) -> None:
        """Count an answer, and log it if the settings say so."""
        path = visit.path if visit.path in self._paths else "other"
        status = visit.status
        if status < 400:
            status = visit.notes.get(ERROR_STATUS, status)
        self._traffic.count(path, status)
        notes = {"client": visit.client, **visit.notes}
        settings = self._settings
        log_request(settings, visit.method, visit.path, caller, visit.name, visit.since, status, notes)


class _Visit:
    """One request and its answer."""

    def __init__(self, scope: Scope, send: Send, name: str) -> None:
        self.since = time.monotonic()
        self.name = name
        method = scope["method"]
        self.method = method if method in KNOWN_METHODS else "other"
        self.path: str = scope["path"]
        self.client = (scope.get("client") or ("", 0))[0]
        self.status = CLIENT_GONE  # until an answer is sent
        self.begun = False
        self.extra: list[tuple[bytes, bytes]] = []
        self.notes: dict[str, Any] = scope.setdefault("stretto", {})
        scope[REQUEST_ID] = name
        self._send = send

    async def send(self, message: Message) -> None:
        """Send a part of the answer; its head gets the request's id and the time so far."""
        if message["type"] == "http.response.start":
            self.begun, self.status = True, message["status"]
            spent = 1e3 * (time.monotonic() - self.since)
            message["headers"] = [
                *message["headers"],
                (b"x-request-id", self.name.encode()),
                (b"server-timing", b"app;dur=%.1f" % spent),
                (b"x-content-type-options", b"nosniff"),
                *self.extra,
            ]
            if name := self.notes.get("left_out"):
                message["headers"].append((LEFT_OUT, name.encode()))
            if warnings := self.notes.get("warnings"):
                text = "; ".join(warnings).encode("ascii", "backslashreplace")
                message["headers"].append((WARNING, bytes(c if 32 <= c < 127 else 32 for c in text)[:2000]))
        await self._send(message)


def is_below(path: str, top: str) -> bool:
    """Whether a path is another one, or below it."""
    return path == top or path.startswith(f"{top}/")


def whole(body: bytes, receive: Receive) -> Callable[[], Awaitable[Message]]:
    """`receive` for an app: the body in one piece, then the messages after it."""
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


class JsonLines(logging.Formatter):
    """A log line as a JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        """Time, level, and the facts or the message."""
        line: dict[str, Any] = {"time": round(record.created, 3), "level": record.levelname.lower()}
        line.update(getattr(record, "facts", None) or {"message": record.getMessage()})
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line)


class TextLines(logging.Formatter):
    """A log line for people."""

    def format(self, record: logging.LogRecord) -> str:
        """Time, level, and the facts or the message."""
        facts = getattr(record, "facts", None)
        text = " ".join(f"{key}={value}" for key, value in facts.items()) if facts else record.getMessage()
        line = (
            f"{self.formatTime(record)} {record.levelname.lower()} {text.encode('unicode_escape').decode()}"
        )
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line
