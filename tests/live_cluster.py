"""A live cluster with replicas for the tests of `make check-ray`, and clients that count how requests end."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections import Counter
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

import httpx
import pytest

from stretto.deploy import cluster

STRETTO = [sys.executable, "-c", "from stretto.cli import main; main()"]
SECONDS = 240.0  # that anything may take on a busy machine
PORT = 8321

live = pytest.mark.skipif(
    not os.environ.get("STRETTO_RAY"), reason="needs a Ray cluster; make check-ray runs it"
)


@dataclass
class Fleet:
    """A cluster that runs: how it is told to do something, and where it answers."""

    environment: dict
    url: str = f"http://127.0.0.1:{PORT}"
    models: list = field(default_factory=list)
    program: list = field(default_factory=lambda: STRETTO)

    def run(self, *words):
        return subprocess.run(
            [*self.program, "deploy", *map(str, words)],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )

    def command(self, *words):
        done = self.run(*words)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    def failure(self, *words):
        done = self.run(*words)
        assert done.returncode != 0, done.stdout
        return done.stderr

    def up(self, *words):
        models = [word for model in self.models for word in ("--model", model)]
        return self.command("up", *models, "--port", PORT, "--cells", 4096, *words)

    def status(self):
        return json.loads(self.command("status", "--json"))

    def running(self):
        return sum(one["replicas"].get("RUNNING", 0) for one in self.status())


@contextmanager
def fleet(home, *models):
    """A cluster in a home of its own; it is taken down whatever happens."""
    environment = {**os.environ, "STRETTO_HOME": str(home)}
    made = Fleet(environment, models=list(models))
    try:
        yield made
    finally:
        cluster.end_head(home / "deploy")


@dataclass
class Heard:
    """How a request went."""

    started: float
    ended: float = 0.0
    replica: str = ""
    pieces: int = 0
    done: bool = False
    error: str = ""
    text: str = ""

    @property
    def pid(self):
        return int(self.replica.partition(":")[2] or 0)


def body(number=0, tokens=24, **more):
    content = f"Tell me about the number {number}."
    return {
        "model": "smollm2",
        "messages": [{"role": "user", "content": content}],
        "max_tokens": tokens,
        "seed": number,
        "stream": True,
        "ignore_eos": True,
        **more,
    }


async def ask(web, request, leave_after=None, path="/v1/chat/completions", **options):
    """One streamed answer; with `leave_after` the client vanishes after so many pieces."""
    heard = Heard(time.monotonic())
    try:
        async with web.stream("POST", path, json=request, **options) as answer:
            heard.replica = answer.headers.get("x-stretto-replica", "")
            if answer.status_code != 200:
                heard.error = f"{answer.status_code} {(await answer.aread())[:300]!r}"
            async for line in answer.aiter_lines():
                if line == "data: [DONE]":
                    heard.done = True
                elif line.startswith("data: ") and '"error"' in line:
                    heard.error = line
                elif line.startswith("data: "):
                    choices = json.loads(line[6:])["choices"]
                    heard.text += (choices[0]["delta"].get("content") or "") if choices else ""
                    heard.pieces += 1
                if leave_after is not None and heard.pieces >= leave_after:
                    return heard
        if not heard.done and not heard.error:
            heard.error = "ended without [DONE]"
    except httpx.HTTPError as error:
        heard.error = f"{type(error).__name__}: {error}"
    heard.ended = time.monotonic()
    return heard


@asynccontextmanager
async def visiting(url, **options):
    async with httpx.AsyncClient(base_url=url, timeout=SECONDS, **options) as web:
        yield web


@asynccontextmanager
async def load(web, clients, tokens=24):
    """Clients that ask again and again until the block ends; gives the list of what they have heard."""
    heard, ended = [], asyncio.Event()

    async def client(number):
        n = 0
        while not ended.is_set():
            heard.append(await ask(web, body(1000 * number + n, tokens)))
            n += 1
            if heard[-1].error:
                await asyncio.sleep(0.2)

    tasks = [asyncio.create_task(client(number)) for number in range(clients)]
    try:
        yield heard
    finally:
        ended.set()
        await asyncio.gather(*tasks)


async def until(condition, seconds=SECONDS):
    """Wait for something that happens elsewhere."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it never happened"
        await asyncio.sleep(0.1)
    return found


async def replicas(web, n):
    """The replicas that answer, once there are `n` of them."""
    found = Counter()
    deadline = time.monotonic() + SECONDS
    while len(found) < n:
        assert time.monotonic() < deadline, f"only {dict(found)} answer"
        heard = await asyncio.gather(*(ask(web, body(i, 2)) for i in range(2 * n)))
        found.update(one.replica for one in heard if not one.error)
    return found
