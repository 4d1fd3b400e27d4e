"""The server's Unix socket, on which commands of the same user find it; `server.sockets` has the other side.

A connection has one request at a time, and a stream ends with it. The options of a request are those of the
command: the server's own defaults, limits and keys are for HTTP.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stretto import __version__
from stretto.engine.request import Progress
from stretto.errors import InvalidRequest, QueueFull, StrettoError
from stretto.llm import LLM
from stretto.server import sockets
from stretto.server.http.errors import ApiError
from stretto.server.http.registry import Lease
from stretto.server.http.served_model import ServedModel
from stretto.server.http.state import Caller, State
from stretto.server.http.usage import resident

if TYPE_CHECKING:
    from stretto.engine.types import Result, Token

log = logging.getLogger("stretto.server")

MAX_CONNECTIONS = 64
LAST_BYTES_SECONDS = 2.0  # for clients to read the end of cancelled streams
PATH = "/local"  # of its requests, among those of HTTP
EXACT = ("native", "reference", "torch")  # backends whose texts do not depend on what else is in a batch
SALT = "local"  # of the prefix cache, where callers are apart


class LocalSocket:
    """The socket, listening once it is constructed; `serve` answers, `close` removes it."""

    def __init__(self, state: State, address: str) -> None:
        self._state, self._address = state, address
        self.tasks: set[asyncio.Task[None]] = set()  # one a connection
        self.idle: set[asyncio.Task[None]] = set()  # those that wait for a request
        self._server: asyncio.Server | None = None
        self._numbers = count()
        self.n_answered = 0
        self._started = time.time()
        # From what each model will be, or was, loaded: a file that is replaced later is another one.
        self._loading = {name: self._described(served) for name, served in state.registry.models.items()}
        self.path, self._listening = _listen()

    def _described(self, served: ServedModel) -> dict[str, Any] | None:
        entry, settings = served.entry, self._state.settings
        if not served.generates or served.is_task or entry.template or entry.vision or entry.adapters:
            return None
        return sockets.loading(served.path, **settings.loading(entry), repack=settings.repack)

    async def serve(self) -> None:
        """Begin to answer."""
        limit = self._state.settings.limits.body
        self._server = await asyncio.start_unix_server(self._connected, sock=self._listening, limit=limit)

    async def close(self) -> None:
        """Accept no more, and wait until those that are being answered have ended, but not for ever.

        The server cancels what still runs after its grace period; clients that read nothing end here.
        """
        with suppress(OSError):
            self.path.unlink()
        if self._server is None:
            self._listening.close()
            return
        self._server.close()
        for connection in tuple(self.idle):
            connection.cancel()
        if self.tasks:
            seconds = self._state.settings.grace_seconds + LAST_BYTES_SECONDS
            _, late = await asyncio.wait(tuple(self.tasks), timeout=seconds)
            for connection in late:
                connection.cancel()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            if sockets.find_peer(writer.get_extra_info("socket")).uid != os.geteuid():
                return  # the folder keeps others out; this is the second lock
            if len(self.tasks) >= MAX_CONNECTIONS:
                return
            self.tasks.add(task)
            await Talk(self, self._state, reader, writer, task).run()
        except (OSError, ValueError, asyncio.CancelledError):  # ValueError: a line that is too long
            pass
        finally:
            self.tasks.discard(task)
            writer.close()

    def about(self) -> dict[str, Any]:
        """The server and its models."""
        registry, traffic = self._state.registry, self._state.traffic
        models = [
            {
                "name": served.name,
                "loaded": served.llm is not None,
                "bytes": served.need,
                "loading": None if served.added else self._loading.get(served.name),
            }
            for served in registry.models.values()
        ]
        return {
            "protocol": sockets.PROTOCOL,
            "version": __version__,
            "pid": os.getpid(),
            "address": self._address,
            "started": self._started,
            "memory": resident(),
            "answered": sum(traffic.answered.values()) + self.n_answered,
            "running": len(self._state.generations),
            "models": models,
        }


class Talk:
    """One connection."""

    def __init__(
        self,
        door: LocalSocket,
        state: State,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        task: asyncio.Task[None],
    ) -> None:
        self._door, self._state, self._task = door, state, task
        self._reader, self._writer = reader, writer
        self._line: asyncio.Future[bytes] | None = None  # the next one, which may be awaited twice

    async def run(self) -> None:
        """Answer requests until the client has gone, or the server ends."""
        try:
            while (line := await self._request()) and await self._answered(line):
                pass
        finally:
            if self._line is not None:
                self._line.cancel()

    async def _request(self) -> bytes:
        """The next line; the server's end need not wait for it."""
        self._door.idle.add(self._task)
        try:
            return await self._next()
        finally:
            self._line = None
            self._door.idle.discard(self._task)

    async def _answered(self, line: bytes) -> bool:
        """Answer a line; False if it is the last one."""
        try:
            request = json.loads(line)
        except (ValueError, RecursionError):
            request = None
        if not isinstance(request, dict):
            return False  # no client of ours
        if request.get("verb") == "cancel":  # which came too late
            return True
        try:
            await self._answer(request)
        except (StrettoError, ApiError) as error:
            await self.send({"error": _error(error)})
        except (TypeError, ValueError, KeyError) as error:
            await self.send({"error": sockets.error_fields(InvalidRequest(f"no such request: {error!r}"))})
        return not self._state.traffic.stopping

    def _next(self) -> asyncio.Future[bytes]:
        if self._line is None:
            self._line = asyncio.ensure_future(self._reader.readline())
            self._line.add_done_callback(_seen)
        return self._line

    async def send(self, answer: Mapping[str, Any]) -> None:
        """Send a line, with no more than a buffer of them unread."""
        self._writer.write(json.dumps(answer).encode() + b"\n")
        await self._writer.drain()

    async def _answer(self, request: dict[str, Any]) -> None:
        verb = request.get("verb")
        if verb == "about":
            await self.send(self._door.about())
            return
        if self._state.traffic.stopping:
            raise ApiError(503, "the server is shutting down")
        with await self._lease(str(request.get("model"))) as lease:
            if verb == "stream":
                await self._stream(lease, request)
                return
            answer = await asyncio.to_thread(_VERBS[str(verb)], lease.llm, request)
        await self.send(answer)

    async def _lease(self, name: str) -> Lease:
        """The model, unless the client goes while it is loaded."""
        wanted = asyncio.ensure_future(self._state.registry.lease(name))
        gone = self._next()
        await asyncio.wait((wanted, gone), return_when=asyncio.FIRST_COMPLETED)
        if not wanted.done():
            wanted.add_done_callback(_returned)
            wanted.cancel()
            raise ConnectionResetError
        return wanted.result()

    async def _stream(self, lease: Lease, request: dict[str, Any]) -> None:
        options = dict(request["options"])
        if options.get("grammar") is not None:
            from stretto import Grammar

            options["grammar"] = Grammar(**options["grammar"])
        if self._state.callers.are_apart:
            options["cache_salt"] = SALT
        stream = lease.llm.astream(request["prompt"], **options)
        generation = _Generation(stream, lease, f"local-{next(self._door._numbers)}")
        self._state.generations.add(generation)
        ended = self._next()
        ended.add_done_callback(generation.cancel_by)
        try:
            async for token in stream:
                await self.send({"token": _token(token)})
            await self.send({"result": _result(await stream.result())})
            self._door.n_answered += 1
        finally:
            stream.cancel()
            ended.remove_done_callback(generation.cancel_by)
            self._state.generations.discard(generation)
        if ended.done() and b'"cancel"' in ended.result():
            self._line = None


def _seen(line: asyncio.Future[bytes]) -> None:
    """Take note of an error of reading, so that nothing complains that nobody did."""
    if not line.cancelled():
        line.exception()


def _returned(wanted: asyncio.Future[Lease]) -> None:
    """Release a lease that came in the moment of its cancellation."""
    if not wanted.cancelled() and wanted.exception() is None:
        wanted.result().release()


class _Generation:
    """A stream among the generations of the server."""

    def __init__(self, stream: Any, lease: Lease, name: str) -> None:
        self._stream = stream
        self.id, self.path, self.model = name, PATH, lease.model.name
        self.caller, self.since, self.n_images = Caller(admin=True), time.monotonic(), 0
        self.cache_difference: dict[str, Any] = {}

    @property
    def progress(self) -> Progress:
        """How far it is."""
        return self._stream.progress or Progress("waiting")

    def stop(self) -> None:
        """Cancel it."""
        self._stream.cancel()

    def cancel(self) -> None:
        """End it by the operator's word."""
        self._stream.cancel()

    def cancel_by(self, line: asyncio.Future[bytes]) -> None:
        """End it because its client says so, or has gone."""
        self._stream.cancel()


def _facts(llm: LLM, request: Mapping[str, Any]) -> dict[str, Any]:
    if llm.backend.name not in EXACT:
        raise ApiError(
            409, f"beside other requests {llm.backend.name} may compute other texts than by itself"
        )
    placement = getattr(llm.backend, "placement", None)
    return {
        "has_template": llm.has_template,
        "context_length": llm.context_length,
        "backend": llm.backend.name,
        "placement": str(placement) if placement else None,
        "end_ids": sorted(llm.tokenizer.end_ids),
    }


def _prompt(llm: LLM, request: Mapping[str, Any]) -> dict[str, Any]:
    ids = llm.chat_prompt(request["messages"], template=request["template"], **request["variables"])
    return {"tokens": ids}


def _encode(llm: LLM, request: Mapping[str, Any]) -> dict[str, Any]:
    return {"tokens": llm.tokenizer.encode_inside(request["text"])}


def _decode(llm: LLM, request: Mapping[str, Any]) -> dict[str, Any]:
    return {"text": llm.tokenizer.decode(request["tokens"])}


_VERBS = {"open": _facts, "prompt": _prompt, "encode": _encode, "decode": _decode}


def _token(token: Token) -> list[Any]:
    top = [[other.token, other.logprob] for other in token.top]
    return [token.id, token.text, token.logprob, top, token.finish_reason, token.is_reasoning]


def _result(result: Result) -> dict[str, Any]:
    names = ("text", "tokens", "finish_reason", "stop_reason", "seed", "reasoning")
    found = {name: getattr(result, name) for name in names}
    return {**found, "usage": asdict(result.usage), "timings": asdict(result.timings)}


def _error(error: Exception) -> dict[str, Any]:
    """An error as JSON; what is the server's and not the request's is `unavailable`."""
    found = sockets.error_fields(error)
    return {**found, "unavailable": isinstance(error, (ApiError, QueueFull))}


def _listen() -> tuple[Path, socket.socket]:
    """A socket in the folder, which is made if it is not there; `InvalidRequest` if it is another's."""
    where = sockets.folder()
    with suppress(OSError):
        where.mkdir(0o700)
    if not sockets.is_private(where):
        raise InvalidRequest(
            f"the socket for commands of this user needs {where} as a folder of its own that nobody else may "
            "look into; commands load their models themselves (--no-socket: without this line)"
        )
    for connection in sockets.servers():  # removes sockets of processes that have ended
        connection.close()
    path = where / f"{os.getpid()}{sockets.SUFFIX}"
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.unlink(missing_ok=True)  # of an earlier process with this number
        listening.bind(str(path))
        path.chmod(0o600)
        listening.listen(MAX_CONNECTIONS)
        listening.setblocking(False)
    except OSError as error:
        listening.close()
        raise InvalidRequest(
            f"cannot listen on {path}: {error.strerror or error}; commands load their models themselves "
            "(--no-socket: without this line)"
        ) from None
    return path, listening
