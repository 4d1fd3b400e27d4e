"""Memory that large bodies leave goes back to the system, once no more of them come."""

import asyncio
import ctypes
import socket
import subprocess
import sys

import pytest

from serving import serving, until, visiting
from stretto.server.http import guard
from stretto.server.http.guard import LARGE_BYTES, QUIET_SECONDS, SpareMemory


class Clock:
    """A loop whose time stands still until it is set."""

    def __init__(self):
        self.now, self.timers, self.ran = 100.0, [], []

    def time(self):
        return self.now

    def call_later(self, seconds, call, *args):
        self.timers.append((self.now + seconds, call, args))

    def run_in_executor(self, executor, work):
        self.ran.append(work)

    def go_to(self, now):
        self.now = now
        due = [timer for timer in self.timers if timer[0] <= now]
        self.timers = [timer for timer in self.timers if timer[0] > now]
        for _, call, args in due:
            call(*args)


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: made)
    return made


def test_free_memory_is_given_back_once_when_bodies_have_stopped(clock):
    spare = SpareMemory()
    for step in range(10):
        clock.go_to(100 + step * 0.6 * QUIET_SECONDS)
        spare.note(LARGE_BYTES)
        assert len(clock.timers) == 1
        assert clock.ran == []
    last = clock.now
    clock.go_to(last + 0.9 * QUIET_SECONDS)
    assert clock.ran == []
    clock.go_to(last + QUIET_SECONDS)
    assert clock.ran == [guard.trim]
    assert clock.timers == []
    spare.note(LARGE_BYTES)  # and again
    clock.go_to(clock.now + QUIET_SECONDS)
    assert len(clock.ran) == 2


def test_small_bodies_cost_no_timer(clock):
    SpareMemory().note(LARGE_BYTES - 1)
    assert clock.timers == []


@pytest.fixture
def trims(monkeypatch):
    """The calls that give memory back, soon after a body."""
    calls = []
    monkeypatch.setattr(guard, "trim", lambda: calls.append(None))
    monkeypatch.setattr(guard, "QUIET_SECONDS", 0.01)
    return calls


def test_a_server_gives_memory_back_after_a_large_body(trims):
    with visiting() as (_, web):
        assert web.post("/v1/completions", json={"model": "mock", "prompt": "x"}).status_code == 200
        assert trims == []
        assert web.post("/v1/completions", content=b"[" * LARGE_BYTES).status_code == 400
        until(lambda: len(trims) == 1)


def test_a_server_gives_memory_back_after_a_body_that_was_cut_off(trims):
    with serving() as running:
        with socket.create_connection(("127.0.0.1", running.port)) as client:
            head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000\r\n\r\n"
            client.sendall(head + b"[" * 2 * LARGE_BYTES)
            until(lambda: running.state.traffic.body_bytes == 2 * LARGE_BYTES)
        until(lambda: len(trims) == 1)


FREED = """
import sys
from pathlib import Path
from stretto.server.http.guard import trim

def resident():
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) << 10

blocks = [b"x" * 100_000 for _ in range(400)]  # from the heap: larger ones would be mapped one by one
last = blocks.pop()  # is behind them, so that the heap cannot shrink
blocks.clear()
before = resident()
trim()
print((before - resident()) >> 20)
"""


@pytest.mark.skipif(
    not sys.platform.startswith("linux") or not hasattr(ctypes.CDLL(None), "malloc_trim"),
    reason="the C library has no malloc_trim",
)
def test_trimming_returns_what_lies_between_used_blocks():
    ran = subprocess.run([sys.executable, "-c", FREED], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) >= 20  # MiB, of 38
