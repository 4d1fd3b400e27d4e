"""Requests leave no garbage: a collection of all objects stops the requests of others for that long."""

import gc
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from serving import endless, serving, until

PROMPT = {"model": "mock", "prompt": "x", "max_tokens": 5}


def ask(server, **fields):
    answer = httpx.post(f"{server.url}/v1/completions", json=PROMPT | fields, timeout=60)
    assert answer.status_code in (200, 400)


def leave(server):
    """Ask for a long text and go after its first bytes."""
    data = json.dumps(PROMPT | {"max_tokens": 400, "stream": True}).encode()
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(data)}\r\n\r\n"
        connection.sendall(head.encode() + data)
        assert connection.recv(100)


REQUESTS = {
    "whole": ask,
    "streamed": lambda server: ask(server, stream=True),
    "several at once": lambda server: ask(server, n=4, stream=True),
    "refused": lambda server: ask(server, temperature="warm"),
    "refused and large": lambda server: ask(server, prompt=[None] * 10_000),
    "left": leave,
}


def of_the_server(thing):
    return type(thing).__module__.startswith(("stretto", "uvicorn"))


@pytest.mark.parametrize("request_of", REQUESTS.values(), ids=REQUESTS)
def test_what_a_request_needed_goes_with_it(request_of):
    with serving(endless(0.001, context_length=1024, cells=4096)) as server:
        request_of(server)
        until(lambda: server.state.traffic.active == 0)
        gc.collect()
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            for _ in range(3):
                request_of(server)
            until(lambda: server.state.traffic.active == 0 and not server.state.generations)
            until(lambda: not server.server.server_state.connections)
            gc.collect()
            found = [type(thing).__name__ for thing in gc.garbage if of_the_server(thing)]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
    assert found == []


OWN_PROCESS = """
import gc, os, signal
from serving import TINY, mock
from stretto.server.serve import Server
from stretto.server.settings import ModelEntry, Settings

def started(address):
    print(gc.get_freeze_count())
    os.kill(os.getpid(), signal.SIGTERM)

settings = Settings((ModelEntry("mock", str(TINY)),), port=0, grace_seconds=0.3, memory=1 << 40)
Server(settings, mock()).run_until_ended(started)
"""


def test_in_a_process_of_its_own_a_collection_skips_what_was_imported():
    folder = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    command = [sys.executable, "-c", OWN_PROCESS]
    done = subprocess.run(command, capture_output=True, text=True, env=folder, check=True, timeout=120)
    assert int(done.stdout) > 10_000
