"""The process: one line when it listens, and an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import uvicorn

from stretto.errors import InvalidRequest
from stretto.server.app import create_app
from stretto.server.guard import Guard, JsonLines, TextLines
from stretto.server.protocol import protocol
from stretto.server.settings import Settings

THREADS = 16  # for what would hold up the loop: templates, tokenizers, loading
TICK = 0.05  # seconds
LAST = 5.0  # seconds for answers to be told that they were ended


class Server(uvicorn.Server):
    """uvicorn's server with an end of our own."""

    guard: Guard

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """`serve` has set its own."""
        yield

    def end(self) -> None:
        """Take nobody new, and let those who are there finish; asked again, end at once."""
        if self.should_exit:
            self.guard.state.cancel_all()
        self.guard.state.stop()
        self.should_exit = True


def serve(settings: Settings, started: Callable[[str], None] = lambda address: None) -> None:
    """Serve until a signal comes. `started` gets the address once it can be used."""
    _log(settings)
    listening = _listen(settings)
    address = _address(settings, listening)
    guard = create_app(settings)
    config = uvicorn.Config(
        guard,
        http=protocol(settings.limits),
        loop="auto",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        limit_concurrency=settings.limits.connections,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=int(settings.grace_seconds + LAST) + 1,
        proxy_headers=False,
    )
    server = Server(config)
    server.guard = guard
    make_loop = config.get_loop_factory()
    loop = make_loop() if make_loop is not None else asyncio.new_event_loop()
    try:
        loop.run_until_complete(_serve(server, listening, settings, lambda: started(address)))
    finally:
        loop.close()


async def _serve(
    server: Server, listening: socket.socket, settings: Settings, started: Callable[[], None]
) -> None:
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(THREADS, "stretto-server"))
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, server.end)
    ending = asyncio.create_task(_end(server, settings, started))
    try:
        await server.serve(sockets=[listening])
    finally:
        ending.cancel()


async def _end(server: Server, settings: Settings, started: Callable[[], None]) -> None:
    """Tell when the server has started; when it ends, end what does not finish in time."""
    while not server.started:
        await asyncio.sleep(TICK)
    started()
    while not server.should_exit:
        await asyncio.sleep(TICK)
    await asyncio.sleep(settings.grace_seconds)
    server.guard.state.cancel_all()


def _listen(settings: Settings) -> socket.socket:
    host = settings.host.strip("[]")
    try:
        ((family, *_, where), *_) = socket.getaddrinfo(host, settings.port, type=socket.SOCK_STREAM)
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(where)
        listening.listen(2048)
    except OSError as error:
        raise InvalidRequest(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror or error}"
        ) from None
    listening.setblocking(False)
    return listening


def _address(settings: Settings, listening: socket.socket) -> str:
    host = f"[{settings.host.strip('[]')}]" if ":" in settings.host else settings.host
    return f"http://{host}:{listening.getsockname()[1]}"


def _log(settings: Settings) -> None:
    """Errors always; requests if asked for."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if settings.log == "json" else TextLines())
    for name, level in (("stretto.server", logging.INFO), ("uvicorn", logging.ERROR)):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level if settings.log != "quiet" else logging.ERROR)
