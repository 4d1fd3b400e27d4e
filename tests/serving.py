"""A server in a thread, on a free port, with a model of the test's own."""

import ssl
import sys
import threading
import time
from contextlib import contextmanager

import httpx

from stretto.server.serve import Server
from stretto.server.settings import ModelEntry, RequestLimits, Settings
from stretto.testing import mock_llm
from tiny_models import FOLDER

STRETTO = [sys.executable, "-c", "from stretto.cli import main; main()"]  # the command
TINY = FOLDER / "llama.gguf"  # stands for a file; what it says is up to the opener
PLAIN = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # of clients without TLS: reading certificates takes 30 ms
HELLO = "Hello world, this is a mock."


def mock(text=HELLO, seconds=0.0, **options):
    """An opener of models that say a text, so many seconds a token; a function may say it too."""

    def opener(entry):
        llm = mock_llm(text, **options)
        forward = llm.backend.forward

        def slow(batch):
            time.sleep(seconds)
            return forward(batch)

        llm.backend.forward = slow
        return llm

    return opener


def endless(seconds=0.005, **options):
    """An opener of models that never stop by themselves, and do not repeat themselves."""
    return mock(lambda seen: 97 + (len(seen) + len(seen) // 26) % 26, seconds, **options)


class Running:
    """A server that runs, and what a test may look at."""

    def __init__(self, server):
        self.server = server
        self.url = server.address
        self.port = int(server.address.rsplit(":", 1)[1])
        self.state = server.guard.state
        self.live = server.guard.app.state.live

    def llm(self, name="mock"):
        return self.state.registry.models[name].llm


@contextmanager
def serving(opener=None, models=(f"mock={TINY}",), limits=None, **settings):
    """Serve until the block ends; an orderly end is part of every test."""
    entries = tuple(ModelEntry.parse(str(text)) for text in models)
    settings = {"port": 0, "grace_seconds": 1.0, "memory": 1 << 40, **settings}
    made = Settings(entries, limits=limits or RequestLimits(), **settings)
    server = Server(made, opener or mock())
    ready = threading.Event()
    thread = threading.Thread(target=server.run_until_ended, args=(lambda address: ready.set(), False))
    thread.start()
    try:
        assert ready.wait(60), "the server did not start"
        yield Running(server)
    finally:
        server.end()
        thread.join(120)
        assert not thread.is_alive(), "the server did not end"


@contextmanager
def visiting(*args, **settings):
    """A server, and a client of it."""
    with (
        serving(*args, **settings) as running,
        httpx.Client(base_url=running.url, timeout=60, verify=PLAIN) as web,
    ):
        yield running, web


def until(condition, seconds=60.0):
    """Wait for something that happens elsewhere."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.005)
