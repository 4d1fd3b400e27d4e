"""The state that all requests of a server share."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Protocol

from fastapi import Request

from stretto.engine.request import Progress
from stretto.server.answer_history import AnswerHistory
from stretto.server.blobs import Blobs
from stretto.server.callers import Caller, Callers
from stretto.server.llama_metrics import Scrapes
from stretto.server.ollama_names import MadeModels
from stretto.server.registry import Opener, Registry
from stretto.server.response_store import ResponseStore
from stretto.server.settings import Settings


class Traffic:
    """Counters of requests and answers; the guard updates them."""

    def __init__(self) -> None:
        self.stopping = False  # new requests are refused
        self.active = 0  # requests under way
        self.body_bytes = 0  # of all bodies in memory
        self.answered: Counter[tuple[str, int]] = Counter()  # by route and status
        self.answers = AnswerHistory()

    def count(self, path: str, status: int) -> None:
        """Count an answer."""
        self.answered[path, status] += 1
        self.answers.count(status)


class Running(Protocol):
    """The part of a generation that the server itself uses."""

    id: str
    path: str
    caller: Caller
    since: float
    n_images: int

    @property
    def model(self) -> str:
        """The name of its model."""

    @property
    def progress(self) -> Progress:
        """How far it is."""

    def stop(self) -> None:
        """Cancel its texts."""

    def cancel(self) -> None:
        """End it by its caller's or the operator's word."""


class Download(Protocol):
    """The part of a download that the server itself uses."""

    def stop(self) -> None:
        """End it soon."""

    async def ended(self, seconds: float) -> None:
        """Wait until it has ended, that long at most."""


class Job(NamedTuple):
    """A response that is made while its client does not wait."""

    generation: Running
    task: asyncio.Task[None]


class State:
    """Settings, models, and running generations."""

    def __init__(self, settings: Settings, opener: Opener | None = None) -> None:
        self.settings = settings
        self.callers = Callers(settings)
        self.registry = Registry(settings, opener)
        self.made = MadeModels()  # by Ollama's /api/create
        self.blobs = Blobs()  # for it
        self.responses = ResponseStore(settings.limits)
        self.generations: set[Running] = set()
        self.jobs: dict[tuple[str, str], Job] = {}  # by caller and id of the response
        self.pull: Download | None = None  # the download under way; there is at most one
        self.traffic = Traffic()
        self.scrapes = Scrapes()  # of /metrics
        self.reader = ThreadPoolExecutor(1, "stretto-cells")  # copies tables of cells for those who look
        self.labels: dict[str, str] = {}  # of all metrics: which replica this is, if it is one
        self.started = time.monotonic()  # the clock on the wall may jump

    def stop(self) -> None:
        """Refuse new requests."""
        self.traffic.stopping = True

    def cancel_all(self) -> None:
        """Cancel all running generations, and the download."""
        if self.pull is not None:
            self.pull.stop()
        for generation in list(self.generations):
            generation.stop()

    async def jobs_ended(self, seconds: float) -> None:
        """Wait until no response is made any more, that long at most."""
        if tasks := [job.task for job in self.jobs.values()]:
            await asyncio.wait(tasks, timeout=seconds)


def state_of(request: Request) -> State:
    """The state of the server that a request came to."""
    state: State = request.app.state.stretto
    return state
