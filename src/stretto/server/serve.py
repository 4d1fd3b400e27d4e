"""The server process: one line when it listens, and a graceful shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import gc
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import uvicorn

from stretto.errors import InvalidRequest
from stretto.server.app import create_app
from stretto.server.http.guard import JsonLines, TextLines
from stretto.server.http.local import LocalSocket
from stretto.server.http.logs import ErrorStream
from stretto.server.http.protocol import protocol, with_descriptors
from stretto.server.http.registry import Opener
from stretto.server.http.usage import HELPER_THREAD_NAME
from stretto.server.settings import Settings

log = logging.getLogger("stretto.server")

HELPER_THREADS = 16  # for blocking work: templates, tokenizers, loading
BACKLOG_CONNECTIONS = 2048  # not yet accepted
START_POLL_SECONDS, END_POLL_SECONDS = 0.02, 0.5
NOTIFY_SECONDS = 5.0  # for cancelled requests to send their last bytes
EXIT_SECONDS = 5.0  # for everything else to end; then the process does, whatever runs
Waiting = Callable[[int], None]


class Server(uvicorn.Server):
    """uvicorn's server with our own shutdown. It listens once it is constructed; `run_until_ended` serves.

    >>> server = Server(settings)
    >>> server.address
    'http://127.0.0.1:8080'
    """

    def __init__(self, settings: Settings, opener: Opener | None = None) -> None:
        settings = replace(settings, limits=with_descriptors(settings.limits))
        self.settings = settings
        self.guard = create_app(settings, opener)
        self._listening = _listen(settings)
        self.address = _address(settings.addresses[0], self._listening[0])
        self.local = self._local_socket() if settings.local else None
        self._owns_process = False
        self._waiting: Waiting = lambda n_running: None
        config = uvicorn.Config(
            self.guard,
            http=protocol(settings.limits),
            loop="auto",
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=int(settings.grace_seconds + NOTIFY_SECONDS) + 1,
            proxy_headers=False,
        )
        super().__init__(config)

    def _local_socket(self) -> LocalSocket | None:
        """The socket for commands of the same user; without one they load models themselves."""
        try:
            return LocalSocket(self.guard.state, self.address)
        except InvalidRequest as error:
            log.error("%s", error)
            return None

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone: `_live` has set handlers."""
        yield

    def run_until_ended(
        self,
        started: Callable[[str], None],
        signals: bool = True,
        waiting: Waiting = lambda n_running: None,
    ) -> None:
        """Serve until `end` is called, by a signal if `signals`. `started` gets the address.

        `waiting` gets the number of running requests, if the end has to wait for some.

        With signals the process is the server's own, and ends some time after the grace period even if a
        thread does not: a model that computes forever, a call that never returns.
        """
        self._owns_process, self._waiting = signals, waiting
        if signals:
            # Modules and schemas are 100,000 objects that stay: looking through them again and again would
            # stop all requests for some 50 ms each time.
            gc.collect()
            gc.freeze()
        make_loop = self.config.get_loop_factory()
        loop = make_loop() if make_loop is not None else asyncio.new_event_loop()
        try:
            loop.run_until_complete(self._live(started, signals))
        finally:
            loop.close()

    def end(self) -> None:
        """Refuse new requests and let running ones finish; a second call cancels them."""
        again = self.should_exit
        if again:
            self.guard.state.cancel_all()
        elif self._owns_process:
            seconds = self.settings.grace_seconds + NOTIFY_SECONDS + EXIT_SECONDS
            # A thread of C, which needs no lock of the interpreter; it says where the others are.
            faulthandler.dump_traceback_later(seconds, exit=True)
        self.guard.state.stop()
        self.should_exit = True
        if (n_running := len(self.guard.state.generations)) and not again:
            self._waiting(n_running)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let requests of the local socket finish too, before models are closed."""
        if self.local is not None:
            await self.local.close()
        await super().shutdown(sockets)

    async def _live(self, started: Callable[[str], None], signals: bool) -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(HELPER_THREADS, HELPER_THREAD_NAME))
        for number in (signal.SIGINT, signal.SIGTERM) if signals else ():
            loop.add_signal_handler(number, self.end)
        watch = asyncio.create_task(self._watch(started))
        try:
            await self.serve(sockets=self._listening)
        finally:
            watch.cancel()

    async def _watch(self, started: Callable[[str], None]) -> None:
        """Call `started` once the server listens; at shutdown, cancel requests that do not finish in time."""
        while not self.started:
            await asyncio.sleep(START_POLL_SECONDS)
        if self.local is not None:
            await self.local.serve()
        started(self.address)
        while not self.should_exit:
            await asyncio.sleep(END_POLL_SECONDS)
        await asyncio.sleep(self.settings.grace_seconds)
        self.guard.state.cancel_all()


def serve(
    settings: Settings,
    started: Callable[[str], None] = lambda address: None,
    waiting: Waiting = lambda n_running: None,
) -> None:
    """Serve until a signal comes. `started` gets the address once it can be used.

    `waiting` gets the number of running requests that the end waits for, if there are any.

    It is the last thing that a process does: soon after the signal's grace period the process ends, whatever
    still runs in it.
    """
    configure_logging(settings)
    Server(settings).run_until_ended(started, waiting=waiting)


def _listen(settings: Settings) -> list[socket.socket]:
    """Sockets of all addresses; where any port will do, they get the same."""
    listening: list[socket.socket] = []
    port = settings.port
    try:
        for host in settings.addresses:
            listening.append(_listen_on(host, port))
            port = listening[0].getsockname()[1]
    except BaseException:
        for one in listening:
            one.close()
        raise
    return listening


def _listen_on(host: str, port: int) -> socket.socket:
    try:
        ((family, *_, where), *_) = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
        listening = socket.socket(family, socket.SOCK_STREAM)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(where)
            listening.listen(BACKLOG_CONNECTIONS)
        except OSError:
            listening.close()
            raise
    except OSError as error:
        raise InvalidRequest(f"cannot listen on {host}:{port}: {error.strerror or error}") from None
    listening.setblocking(False)
    return listening


def _address(host: str, listening: socket.socket) -> str:
    host = f"[{host.strip('[]')}]" if ":" in host else host
    return f"http://{host}:{listening.getsockname()[1]}"


def configure_logging(settings: Settings) -> None:
    """Log errors always, and requests if asked for."""
    handler = ErrorStream(JsonLines() if settings.log == "json" else TextLines())
    for name, level in (("stretto.server", logging.INFO), ("uvicorn", logging.ERROR)):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level if settings.log != "quiet" else logging.ERROR)
