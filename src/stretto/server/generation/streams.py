"""Streams that outlive their connection: `resumable` in a request, and `/stretto/streams/ID` to read on.

The answer is sent into a buffer of numbered events, and a connection reads from there. When the client is
gone, generation goes on for a while, as a running request of its caller like any other; whoever has the
stream's id and the same key reads on behind the last event that came. What nobody comes back for ends.
"""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import islice
from secrets import token_urlsafe
from typing import Annotated

from fastapi import Query, Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from stretto.server.generation.answer import Answer, Streamed
from stretto.server.generation.generation import Generation
from stretto.server.http.bodies import make_router
from stretto.server.http.errors import ApiError, Json, field_error, write_error
from stretto.server.http.state import Job, State, get_caller, get_state
from stretto.server.http.streaming import DIRECT, EVENTS, OpenResponse, event

STREAM_ID = "x-stretto-stream"  # header of an answer that can be read on
ID_BYTES = 24  # random ones

router = make_router("Stretto")


class KeptStream:
    """The numbered events of one answer, made whether or not somebody reads them.

    Events that were handed to a connection are kept as long as there is room; one that was not is never
    dropped: making waits for a slow reader, and ends if there is none.
    """

    def __init__(self, state: State, answer: Answer) -> None:
        self.name = token_urlsafe(ID_BYTES)
        self.caller = answer.generation.caller.name
        self.path = answer.generation.path
        self.done = False
        self.news = asyncio.Event()  # for the reader
        self._limits = state.settings.limits
        self._state = state
        self._generation: Generation | None = answer.generation  # until it has ended
        self._events: deque[bytes] = deque()
        self._first = 1  # number of the oldest event that is kept
        self._sent = 0  # number of the last event that a connection got
        self._n_bytes = 0
        self._reader: Reading | None = None
        self._room = asyncio.Event()
        self._unwanted = asyncio.Event()
        self._was_left = False
        self._timer = self._in_a_while()
        task = asyncio.create_task(self._make(answer))
        get_streams(state)[self.caller, self.name] = self
        state.jobs[self.caller, self.name] = Job(answer.generation, task)

    async def _make(self, answer: Answer) -> None:
        generation = answer.generation
        try:
            await Streamed(answer, generation.texts)({}, self._hung_up, self._take)
        finally:
            generation.close()
            self._generation = None
            self.done = True
            self.news.set()
            self._state.jobs.pop((self.caller, self.name), None)
            if self._was_left:  # the line of the request was written when its connection ended
                generation.log_end()

    def _in_a_while(self) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(self._limits.stream_seconds, self.forget)

    async def _hung_up(self) -> Message:
        await self._unwanted.wait()
        return {"type": "http.disconnect"}

    async def _take(self, message: Message) -> None:
        for piece in message.get("body", b"").split(b"\n\n")[:-1]:
            number = self._first + len(self._events)
            self._events.append(b"id: %d\n%b\n\n" % (number, piece))
            self._n_bytes += len(self._events[-1])
        self.news.set()
        while self._n_bytes > self._limits.stream_bytes:
            if self._first <= self._sent:
                self._n_bytes -= len(self._events.popleft())
                self._first += 1
            elif self._reader is not None:
                self._room.clear()
                await self._room.wait()
            else:
                self.forget()
                break

    # -- reading --

    def check(self, after: int) -> None:
        """Raise unless the events behind a number can be read."""
        last = self._first + len(self._events) - 1
        if after > last:
            raise field_error(
                "after", f"after is {after}, and the last event of this stream so far is {last}"
            )
        if after < self._first - 1:
            raise ApiError(
                410,
                f"the events of this stream up to {self._first - 1} are not kept any more",
                param="after",
                code="events_gone",
            )

    def attach(self, reader: Reading) -> None:
        """A connection reads from now on; the one that read before, if any, ends."""
        self._reader = reader
        self._timer.cancel()
        self.news.set()

    def is_read_by(self, reader: Reading) -> bool:
        """Whether no other connection has taken the stream over."""
        return self._reader is reader

    def behind(self, number: int) -> tuple[bytes, int]:
        """The events behind a number, and the number of the last of them."""
        self.check(number)
        found = list(islice(self._events, number + 1 - self._first, None))
        return b"".join(found), number + len(found)

    def note_sent(self, number: int) -> None:
        """A connection got the events up to a number."""
        self._sent = max(self._sent, number)
        self._room.set()

    def leave(self, reader: Reading) -> None:
        """A connection has ended. Without another one the stream is kept for a while, among so many."""
        if self._reader is not reader:
            return
        self._reader = None
        self._room.set()
        if self._generation is not None and not self._was_left:
            self._was_left = True
            self._generation.note(detached=True)
        streams = get_streams(self._state)
        if streams.pop((self.caller, self.name), None) is None:  # it was ended while it was read
            self.forget()
            return
        streams[self.caller, self.name] = self  # behind those that were left before it
        self._timer = self._in_a_while()
        unread = [one for one in streams.values() if one.caller == self.caller and one._reader is None]
        for oldest in unread[: -self._limits.streams]:
            oldest.forget()

    def forget(self) -> None:
        """End the answer as a client does that disconnects; the stream cannot be found any more."""
        get_streams(self._state).pop((self.caller, self.name), None)
        self._unwanted.set()
        self._timer.cancel()

    def cancel(self) -> None:
        """End the answer by its caller's word; a connection that reads gets an error that says so."""
        get_streams(self._state).pop((self.caller, self.name), None)
        if self._generation is not None:
            self._generation.cancel()


class _Streams(dict[tuple[str, str], KeptStream]):
    """All streams that can be read on, by caller and id."""


def get_streams(state: State) -> _Streams:
    """The streams of a server."""
    return state.part(_Streams)


class Reading(OpenResponse):
    """Sends the events of a stream behind a number, as they come."""

    def __init__(self, stream: KeptStream, after: int = 0) -> None:
        super().__init__()
        self._stream = stream
        self._at = after
        self.headers[STREAM_ID] = stream.name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the stream or the client is gone, or another connection has taken over."""
        self._stream.attach(self)
        work = self._send(send, scope.get(DIRECT, send))
        await self.send_until(work, receive, lambda: self._stream.leave(self))

    async def _send(self, send: Send, direct: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        last = b""
        try:
            await self._read(direct)
        except ApiError as error:
            last = event(write_error(error, self._stream.path)).encode()
        await send({"type": "http.response.body", "body": last, "more_body": False})

    async def _read(self, direct: Send) -> None:
        stream = self._stream
        while True:
            stream.news.clear()
            if not stream.is_read_by(self):
                stream.news.set()  # they are for the other one
                raise ApiError(409, "another connection reads this stream now", code="taken_over")
            piece, at = stream.behind(self._at)
            if piece:
                await direct({"type": "http.response.body", "body": piece, "more_body": True})
                self._at = at
                stream.note_sent(at)
            elif stream.done:
                return
            else:
                await stream.news.wait()


def keep_stream(request: Request, answer: Answer) -> Response:
    """Stream an answer that has been started, so that it can be read on after its connection."""
    return Reading(KeptStream(get_state(request), answer))


def _find(request: Request, name: str) -> KeptStream:
    found = get_streams(get_state(request)).get((get_caller(request).name, name))
    if found is None:
        message = (
            f"there is no stream {name[:64]!r} of yours; it has ended, or nobody has read it for too long"
        )
        raise ApiError(404, message, param="name", code="not_found")
    return found


@router.get("/stretto/streams/{name}")
async def read_on(
    name: str,
    request: Request,
    after: Annotated[
        int | None, Query(ge=0, lt=1 << 53, description="Number of the last event that has come.")
    ] = None,
) -> Response:
    """The events of a resumable stream behind a number, as they come; another connection to it ends."""
    stream = _find(request, name)
    if after is None:
        given = request.headers.get("last-event-id", "0")
        if not (given.isascii() and given.isdigit() and len(given) < 16):
            raise field_error("last-event-id", f"the Last-Event-ID {given[:100]!r} is no number")
        after = int(given)
    stream.check(after)
    return Reading(stream, after)


@router.head("/stretto/streams/{name}")
async def find_stream(name: str, request: Request) -> Response:
    """Whether there is a resumable stream of the caller's by this id; nothing is read of it."""
    _find(request, name)
    return Response(media_type=EVENTS)


@router.delete("/stretto/streams/{name}")
async def end_stream(name: str, request: Request) -> Response:
    """End a resumable stream; whoever reads it gets an error with the code `cancelled`."""
    stream = _find(request, name)
    stream.cancel()
    return Json({"ended": name})
