"""`GET /stretto/live`: the server as it runs, as server-sent events for pages.

One task reads for all who watch, and only while somebody does: figures once a second, cells at most ten
times and only if they have changed. Reading, encoding and sending may take 1 % of a core together, on a busy
machine about 1 % of what the process gets: if they take longer, everything comes less often. A slow reader
gets the latest state when it has taken the last.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Annotated

from fastapi import Query, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from stretto import __version__
from stretto.engine.metrics import HISTORY_SECONDS
from stretto.server.http.bodies import make_router
from stretto.server.http.errors import ApiError, field_error, translate
from stretto.server.http.history import Load, Watched, columns
from stretto.server.http.keys import Keys
from stretto.server.http.logs import LastLines
from stretto.server.http.state import Caller, State, get_caller, get_state
from stretto.server.http.streaming import DIRECT, OpenResponse, event
from stretto.server.own.cells import CellEvents
from stretto.server.own.requests import list_requests

router = make_router("Stretto")

MAX_WATCHERS = 8
RETRY_SECONDS = 10
CELL_SECONDS, LOAD_SECONDS = 0.1, 1.0  # between two frames, at least
CPU_SHARE = 0.01  # of a core, for all watching together, at most
PROCESS_SHARE = 0.012  # and of what the process gets of the processors: on a busy machine that may be little
MIN_CPU_SHARE = 0.0015  # of a core: an idle server can be watched too
BURST_SECONDS = 2.0  # of that share may be spent in advance: a page that opens shows something soon
MAX_DELAY_SECONDS = 5.0  # however much it takes
SEND_SECONDS = 30.0  # that a reader may take for what it was sent
MAX_SEND_CPU = 0.002  # counted for sending, during which other tasks may run


class Watcher:
    """A reader of events: who it is, what it wants, and what it has been sent."""

    def __init__(self, caller: Caller, model: str | None = None) -> None:
        self.caller = caller
        self.model = model  # whose cells it wants, if any
        self.seen = 0  # the number of the last event of its cells
        self.n_load = 0  # the number of the last figures it got
        self.n_lines = 0  # and of the last line of the log
        self.sending: float | None = None  # since when it has not taken what it was sent
        self.left = asyncio.Event()  # nothing more is sent: it takes nothing, or there is nothing
        self.news = asyncio.Event()


class Live:
    """All who watch, and the task that reads for them."""

    def __init__(self, state: State, lines: LastLines) -> None:
        self.state = state
        self.lines = lines
        self.watchers: set[Watcher] = set()
        self.task: asyncio.Task[None] | None = None
        self.spent = 0.0  # seconds of CPU time, since the server started
        self._cells: dict[str, CellEvents] = {}
        self._n_load = 0
        self._figures = ""  # the last ones, while somebody watches
        self._requests: dict[Caller, str] = {}  # of these figures
        self._past: deque[Watched] = deque(maxlen=HISTORY_SECONDS)
        self._share = CPU_SHARE
        self.ready = 0.0  # the time from which on reading is within its share of the CPU
        self._joined = asyncio.Event()

    def check_room(self) -> None:
        """Raise if too many watch already."""
        if len(self.watchers) >= MAX_WATCHERS:
            message = f"{MAX_WATCHERS} pages watch this server already; close one, or try again later"
            raise ApiError(429, message, code="too_many_watchers", retry_after=RETRY_SECONDS)

    def join(self, watcher: Watcher) -> None:
        """Take a watcher on; the first one starts the task."""
        self.check_room()
        self.watchers.add(watcher)
        self._joined.set()
        if self.task is None or self.task.done():
            self.task = asyncio.create_task(self._watch())

    def leave(self, watcher: Watcher) -> None:
        """Let a watcher go; after the last one nothing runs and nothing is kept but the past."""
        self.watchers.discard(watcher)
        if not self.watchers and self.task is not None:
            self.task.cancel()
            self.task = None
            self._cells.clear()
            self._figures = ""
            self._requests.clear()

    def spend(self, seconds: float, is_first: bool = False) -> None:
        """Count CPU time, and put off what comes next accordingly; less so what a page gets first."""
        self.spent += seconds
        now = time.monotonic()
        ready = max(now - BURST_SECONDS, self.ready) + seconds / (CPU_SHARE if is_first else self._share)
        self.ready = min(ready, now + MAX_DELAY_SECONDS)

    # -- reading --

    async def _watch(self) -> None:
        """Read until the server shuts down; an error ends all streams, whose readers may come back."""
        try:
            await self._read()
        except Exception as error:
            translate(error)  # logged, if it is a bug
        for watcher in self.watchers:
            watcher.left.set()

    async def _read(self) -> None:
        load, next_load = Load(self.state), time.monotonic() + LOAD_SECONDS / 4  # the first ones come soon
        while not self.state.traffic.stopping:
            self._joined.clear()
            if time.monotonic() >= next_load:
                next_load = time.monotonic() + LOAD_SECONDS
                self.measure(load)
            await self._look()
            for watcher in self.watchers:
                watcher.news.set()
                if watcher.sending is not None and watcher.sending < time.monotonic() - SEND_SECONDS:
                    watcher.left.set()
            due = next_load
            if any(watcher.model for watcher in self.watchers):
                due = min(due, time.monotonic() + CELL_SECONDS)
            await self._sleep(max(due, self.ready))

    async def _sleep(self, until: float) -> None:
        """Sleep, less long if another watcher joins; but not before what was spent is made up for."""
        wait = max(0.0, until - time.monotonic())
        timer = asyncio.get_running_loop().call_later(wait, self._joined.set)
        try:
            await self._joined.wait()
        finally:
            timer.cancel()
        await asyncio.sleep(max(0.0, self.ready - time.monotonic()))

    def measure(self, load: Load) -> None:
        """Take the figures that pages show, and count what that costs."""
        begun = time.thread_time()
        figures = load.figures()
        self._past.append(Watched(int(time.perf_counter()), figures["cpu"], figures["memory"]["rss"]))
        self._share = min(CPU_SHARE, max(MIN_CPU_SHARE, PROCESS_SHARE * figures["cpu"]["process"]))
        self._n_load += 1
        self._figures = event({"stats": figures})
        self._requests.clear()
        self.spend(time.thread_time() - begun)

    async def _look(self) -> None:
        wanted: dict[str, set[Caller]] = {}
        for watcher in self.watchers:
            if watcher.model is not None:
                wanted.setdefault(watcher.model, set()).add(watcher.caller)
        for name in self._cells.keys() - wanted.keys():
            del self._cells[name]
        for name, callers in wanted.items():
            is_first = name not in self._cells
            if is_first:
                self._cells[name] = CellEvents(self.state, self.state.registry.find(name))
            self.spend(await self._cells[name].look(callers), is_first)

    # -- for each watcher --

    def opening(self, watcher: Watcher) -> str:
        """The first events: who this is, and the last minutes."""
        begun = time.thread_time()
        admin = watcher.caller.admin
        hello = {"version": __version__, "watchers": len(self.watchers), "admin": admin, **self.state.labels}
        text = event({"hello": hello}) + event({"history": columns(self.state, self._past)})
        self.spend(time.thread_time() - begun, is_first=True)
        return text

    def news(self, watcher: Watcher) -> str:
        """What is new for a watcher, up to now."""
        begun, events = time.thread_time(), []
        is_first = watcher.model is not None and not watcher.seen
        if self._figures and watcher.n_load != self._n_load:
            watcher.n_load = self._n_load
            events += [self._figures, self._requests_of(watcher.caller)]
            if keys := [use.facts() for use in self.state.part(Keys).shown(watcher.caller)]:
                events.append(event({"keys": keys}))
        if watcher.caller.admin:
            watcher.n_lines, lines = self.lines.since(watcher.n_lines)
            if lines:
                events.append(event({"logs": lines}))
        if watcher.model is not None and watcher.model in self._cells:
            watcher.seen, cells = self._cells[watcher.model].news(watcher.caller, watcher.seen)
            if cells:
                events.append(cells)
        self.spend(time.thread_time() - begun, is_first)
        return "".join(events)

    def _requests_of(self, caller: Caller) -> str:
        if caller not in self._requests:
            self._requests[caller] = event({"requests": list_requests(self.state, caller)})
        return self._requests[caller]


class LiveStream(OpenResponse):
    """The events of a watcher, until it disconnects or the server shuts down."""

    def __init__(self, live: Live, watcher: Watcher) -> None:
        super().__init__()
        self._live = live
        self._watcher = watcher

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events."""
        live, watcher = self._live, self._watcher
        live.join(watcher)
        work = self._send(send, scope.get(DIRECT, send))
        await self.send_until(work, receive, lambda: live.leave(watcher), watcher.left.wait())
        if watcher.left.is_set() and watcher.sending is None:
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, send: Send, direct: Send) -> None:
        live, watcher = self._live, self._watcher
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        text = live.opening(watcher)
        while True:
            if text:
                begun, watcher.sending = time.thread_time(), time.monotonic()
                await direct({"type": "http.response.body", "body": text.encode(), "more_body": True})
                watcher.sending = None
                live.spend(min(MAX_SEND_CPU, time.thread_time() - begun))
            await watcher.news.wait()
            watcher.news.clear()
            text = live.news(watcher)


@router.get("/stretto/live")
async def live(
    request: Request,
    model: Annotated[str | None, Query(min_length=1, max_length=256)] = None,
    cells: bool = False,
) -> Response:
    """The server as it runs: figures, requests, log lines, and with `cells` those of a model, as events."""
    state = get_state(request)
    if model is not None:
        state.registry.find(model)
    if cells and model is None:
        raise field_error("model", "cells needs the name of a model", "missing_field")
    hub: Live = request.app.state.live
    hub.check_room()
    return LiveStream(hub, Watcher(get_caller(request), model if cells else None))
