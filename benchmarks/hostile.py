"""An honest client beside a thousand hostile connections: how long it waits, and whether the memory returns.

    python benchmarks/hostile.py                       # a mock model: the server alone
    python benchmarks/hostile.py --model smollm2       # a real one, whose steps hostile requests share
    python benchmarks/hostile.py --kinds vanish,nulls  # these alone: which of them costs how much

Hostile clients send heads that drip, bodies that are never complete, bodies made to take long, and requests
whose answer they do not read or leave in the middle. One honest client asks for a short text all the while.
Both are processes of their own. The hostile one gets processor time after the server and the honest client:
elsewhere it would be on other machines. Prints the honest client's median and p99 before and during that,
the factor between them, and the resident memory of the server before, at most, and afterwards.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

MOCK = """
import gc, sys
sys.path.insert(0, sys.argv[1])
from serving import mock, serving
with serving(mock("Hello world", 0.002, cells=16384), max_running=64, max_queue=4096) as server:
    gc.collect()
    gc.freeze()  # with the app, as `stretto serve` does
    print(server.port, flush=True)
    sys.stdin.read()
"""


def body(**fields: object) -> bytes:
    return json.dumps({"model": "mock", "max_tokens": 8, **fields}).encode()


IMAGE = {"type": "image_url", "image_url": {"url": "data:,x"}}
BODIES = {
    "nulls": body(prompt=[None] * 100_000),
    "nesting": b"[" * 200_000,
    "unended": b'{"prompt": "' + b"x" * 500_000,
    "fields": json.dumps({f"field{i}": 0 for i in range(20_000)}).encode(),
    "stops": body(prompt="x", stop=[letter * 1000 for letter in "abcdefgh"]),
    "many": body(prompt="x", n=16, stream=True),
    "image": body(messages=[{"role": "user", "content": [IMAGE]}]),
}
WAYS = ("drip", "never_complete", "costly", "vanish")  # methods of `Client`; "costly" is any of the bodies


class Client:
    """One connection at a time to the server."""

    def __init__(self, port: int, pause: float = 0.0, kinds: Sequence[str] = WAYS) -> None:
        self.port, self.pause, self.kinds = port, pause, kinds
        self.misdeeds = 0

    async def ask(self, data: bytes, path: str = "/v1/completions", read: bool = True) -> bytes:
        """Send a request and read all of the answer, or leave."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            writer.write(f"{head}connection: close\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data)
            await writer.drain()
            return await reader.read() if read else await reader.read(100)
        finally:
            writer.close()

    async def honest(self, seconds: float) -> list[float]:
        """Seconds of each short request, one after the other."""
        times: list[float] = []
        end = time.monotonic() + seconds
        fields = {"model": "mock", "prompt": "Hello", "max_tokens": 4, "temperature": 0}
        while time.monotonic() < end or len(times) < 20:
            begun = time.monotonic()
            answer = await self.ask(json.dumps(fields).encode())
            if b" 200 " in answer[:20]:  # a 429 under load is an answer too, and tried again
                times.append(time.monotonic() - begun)
            await asyncio.sleep(0.02)
        return times

    async def hostile(self, rng: random.Random, end: float) -> None:
        """One misbehaviour after the other."""
        while time.monotonic() < end:
            await asyncio.sleep(2 * self.pause * rng.random())
            with suppress(OSError, asyncio.IncompleteReadError):
                await self.misbehave(rng.choice(self.kinds), rng, end)
                self.misdeeds += 1

    async def misbehave(self, kind: str, rng: random.Random, end: float) -> None:
        if kind in WAYS:
            await getattr(self, kind)(rng, end)
        else:
            await self.ask(BODIES[kind])

    async def drip(self, rng: random.Random, end: float) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        with suppress(OSError):
            while time.monotonic() < end:
                writer.write(b"GET /health HTTP/1.1\r\nx-more: y\r\n"[: rng.randrange(1, 30)])
                await writer.drain()
                await asyncio.sleep(0.5)
        writer.close()

    async def never_complete(self, rng: random.Random, end: float) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000\r\n\r\n{")
        with suppress(OSError):
            await writer.drain()
        await asyncio.sleep(min(5.0, max(0.0, end - time.monotonic())))
        writer.close()

    async def costly(self, rng: random.Random, end: float) -> None:
        await self.ask(rng.choice(list(BODIES.values())))

    async def vanish(self, rng: random.Random, end: float) -> None:
        fields = {"model": "mock", "prompt": "x", "max_tokens": 50, "stream": True}
        await self.ask(json.dumps(fields).encode(), read=False)


def resident(pid: int) -> float:
    """MiB of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) / 1024


def quantile(times: list[float], q: float) -> float:
    return sorted(times)[min(len(times) - 1, int(q * len(times)))]


async def crowd(client: Client, connections: int, seconds: float) -> None:
    """Hostile clients, as many as that."""
    end, rng = time.monotonic() + seconds, random.Random(1)
    await asyncio.gather(*(client.hostile(rng, end) for _ in range(connections)), return_exceptions=True)


def stand_back() -> None:
    """Take processor time that the server and the honest client leave.

    Real-time priority (`chrt -f`) is given up altogether: Linux stops all processes that have it for up to
    50 ms in each second of which they leave less than 5 % to others, the server among them.
    """
    if os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR):
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    else:
        os.nice(10)


async def apart(role: str, port: int, seconds: float, *options: str) -> bytes:
    """Run the honest client or the crowd in a process of its own; returns what it prints."""
    command = [sys.executable, __file__, role, str(port), "--seconds", str(seconds), *options]
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    output, _ = await process.communicate()
    return output


async def measure(port: int, pid: int, seconds: float, *crowd_options: str) -> None:
    quiet: list[float] = json.loads(await apart("--honest", port, seconds))
    before = most = resident(pid)
    hostile = asyncio.create_task(apart("--crowd", port, seconds + 1, *crowd_options))
    await asyncio.sleep(1)
    honest = asyncio.create_task(apart("--honest", port, seconds - 1))
    while not honest.done():
        most = max(most, resident(pid))
        await asyncio.sleep(0.2)
    busy: list[float] = json.loads(honest.result())
    misdeeds = int(await hostile)
    await asyncio.sleep(5)
    for name, times in (("quiet", quiet), ("hostile", busy)):
        print(f"{name:8} {len(times):5} requests, median {1e3 * quantile(times, 0.5):7.1f} ms, "
              f"p99 {1e3 * quantile(times, 0.99):7.1f} ms")  # fmt: skip
    print(f"p99 × {quantile(busy, 0.99) / quantile(quiet, 0.99):.2f} beside {misdeeds} misdeeds; "
          f"memory {before:.0f} MiB, at most {most:.0f}, afterwards {resident(pid):.0f}")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="a model for `stretto serve`; a mock without it")
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--pause", type=float, default=5, help="seconds between two misdeeds of a client")
    parser.add_argument("--kinds", default=",".join(WAYS), help=f"of {', '.join([*WAYS, *BODIES])}")
    parser.add_argument("--honest", type=int, metavar="PORT", help=argparse.SUPPRESS)
    parser.add_argument("--crowd", type=int, metavar="PORT", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.honest:
        print(json.dumps(asyncio.run(Client(options.honest).honest(options.seconds))))
        return
    if options.crowd:
        stand_back()
        client = Client(options.crowd, options.pause, options.kinds.split(","))
        asyncio.run(crowd(client, options.connections, options.seconds))
        print(client.misdeeds)
        return
    tests = str(Path(__file__).parents[1] / "tests")
    if options.model:
        port = random.randrange(20_000, 30_000)
        command = [sys.executable, "-c", "from stretto.cli import main; main()", "serve", "--port", str(port)]
        server = subprocess.Popen([*command, "--model", f"mock={options.model}"], stdin=subprocess.PIPE)
        time.sleep(10)
    else:
        command = [sys.executable, "-c", MOCK, tests]
        server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert server.stdout is not None
        port = int(server.stdout.readline())
    try:
        size = "--connections", str(options.connections), "--pause", str(options.pause)
        asyncio.run(measure(port, server.pid, options.seconds, *size, "--kinds", options.kinds))
    finally:
        server.kill()
        server.wait()


if __name__ == "__main__":
    main()
