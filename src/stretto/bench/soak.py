"""A soak: everything users do to an engine, at random and at once, for a long time.

Threads and an event loop make requests of all kinds against one model: they stop them, time them out, cancel
them from elsewhere, forget them, raise in hooks and callbacks, fill the cache and the queue. Meanwhile and at
the end everything has to add up:

- every request ends within a generous time
- the table of cells is sound, and nothing is held once all is done
- every request that was added has finished or failed
- requests with a seed give the tokens that they give alone
- memory does not grow
"""

from __future__ import annotations

import asyncio
import gc
import random
import statistics
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.errors import CacheFull, QueueFull
from stretto.llm import LLM

WARM_UP = 60.0  # seconds after which memory should be flat; less in a short soak
GROWTH = 0.03  # of memory that is allowed all the same,
SLACK = 16.0  # and megabytes
N_PROBES = 6
PAGE = 4096


class Mine(Exception):
    """Raised by hooks and callbacks here, and expected to come out."""


@dataclass(frozen=True)
class SoakPlan:
    """How long, how many at once, and how many seconds a request may take at most."""

    seconds: float
    seed: int = 0
    threads: int = 6
    tasks: int = 6
    patience: float = 120.0
    every: float = 2.0  # seconds between checks


@dataclass
class SoakReport:
    """What was done, and what is wrong; nothing should be."""

    done: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    memory: list[tuple[float, float]] = field(default_factory=list)  # (second, megabytes)
    metrics: dict[str, Any] = field(default_factory=dict)


class Shared:
    """A hook for many requests at once: forbids one token."""

    def __call__(self, logits: NDArray[np.float32], tokens: list[int]) -> None:
        """For one row."""
        logits[1] = -np.inf

    def batch(self, logits: NDArray[np.float32], rows: list[Any]) -> None:
        """The same for several rows."""
        logits[:, 1] = -np.inf


def soak(llm: LLM, plan: SoakPlan, tell: Callable[[str], None] = lambda line: None) -> SoakReport:
    """Run it; `tell` gets a line every now and then."""
    return _Soak(llm, plan, tell).run()


class _Soak:
    def __init__(self, llm: LLM, plan: SoakPlan, tell: Callable[[str], None]) -> None:
        self.llm, self.plan, self.tell = llm, plan, tell
        self.report = SoakReport()
        self.lock = threading.Lock()
        self.ends = 0.0
        self.doing: dict[str, tuple[str, float]] = {}  # who is at what since when
        self.streams: list[Any] = []  # that somebody else may cancel
        self.shared = Shared()
        rng = random.Random(plan.seed)
        most = llm.context_length // 3
        self.heads = [self.ids(rng, most // 2) for _ in range(4)]
        self.probes = [self.probe(rng) for _ in range(N_PROBES)]
        self.answers: list[list[int]] = []

    # -- random requests --

    def ids(self, rng: random.Random, n: int) -> list[int]:
        return rng.choices(range(2, min(self.llm.spec.n_vocab, 5000)), k=n)

    def prompt(self, rng: random.Random) -> list[int]:
        """Short or long, often with a beginning that others have."""
        most = self.llm.context_length // 3
        head = rng.choice(self.heads)[: rng.randint(0, most // 2)] if rng.random() < 0.6 else []
        tail = rng.choice((1, 3, 10, most // 2))
        return head + self.ids(rng, rng.randint(1, max(1, tail)))

    def options(self, rng: random.Random) -> dict[str, Any]:
        """What any request may have."""
        found: dict[str, Any] = {
            "max_tokens": rng.choice((1, 4, 12, 40)),
            "priority": rng.choice((-1, 0, 0, 3)),
        }
        choices: dict[str, Any] = {
            "seed": rng.randint(0, 99),
            "temperature": rng.choice((0.0, 0.7, 1.5)),
            "stop": self.llm.tokenizer.decode(self.ids(rng, 1)) or "x",
            "repetition_penalty": 1.2,
            "logprobs": 3,
            "ignore_eos": True,
            "timeout": rng.choice((0.001, 0.02, 0.2, 5.0)),
            "hooks": [self.shared],
        }
        for name, value in choices.items():
            if rng.random() < 0.2:
                found[name] = value
        return found

    def probe(self, rng: random.Random) -> tuple[list[int], dict[str, Any]]:
        """A request whose tokens are known."""
        options = {"seed": rng.randint(0, 99), "max_tokens": 16, "ignore_eos": True, "hooks": [self.shared]}
        return self.prompt(rng), options | rng.choice(({}, {"temperature": 0.0}, {"frequency_penalty": 0.5}))

    # -- what threads do --

    def kinds(self) -> dict[str, Callable[[random.Random], object]]:
        llm = self.llm

        def one(rng: random.Random) -> object:
            return llm.generate(self.prompt(rng), **self.options(rng))

        def several(rng: random.Random) -> object:
            return llm.generate([self.prompt(rng) for _ in range(rng.randint(1, 6))], **self.options(rng))

        def branches(rng: random.Random) -> object:
            how = rng.choice(({"n": 3}, {"best_of": 3}, {"n": 2, "best_of": 4}))
            return llm.generate(self.prompt(rng), **(self.options(rng) | how))

        def beams(rng: random.Random) -> object:
            timeout = rng.choice((None, 0.05))
            return llm.generate(self.prompt(rng), beams=rng.randint(1, 4), max_tokens=10, timeout=timeout)

        def probe(rng: random.Random) -> object:
            index = rng.randrange(N_PROBES)
            prompt, options = self.probes[index]
            self.compare(index, llm.generate(prompt, **options))
            return None

        def hooks(rng: random.Random) -> object:
            at = rng.randint(0, 10)

            def hook(logits: NDArray[np.float32], tokens: list[int]) -> None:
                logits[5] += 1.0
                if len(tokens) % 11 == at:
                    raise Mine

            return llm.generate(self.prompt(rng), **(self.options(rng) | {"hooks": [self.shared, hook]}))

        def callback(rng: random.Random) -> object:
            left = rng.randint(0, 8)
            way = rng.choice(("no more", "raise", "generate"))

            def after(token: object) -> bool:
                nonlocal left
                left -= 1
                if left < 0 and way == "raise":
                    raise Mine
                if left < 0 and way == "generate":
                    llm.generate(self.prompt(rng), max_tokens=2)
                return left >= 0

            return llm.generate(self.prompt(rng), **(self.options(rng) | {"callback": after}))

        def stream(rng: random.Random) -> object:
            stream = llm.stream(self.prompt(rng), **self.options(rng))
            self.streams.append(stream)
            try:
                return sum(1 for _ in stream)
            finally:
                self.streams.remove(stream)

        def leave(rng: random.Random) -> object:
            with llm.stream(self.prompt(rng), **self.options(rng)) as stream:
                return next(stream, None)

        def forget(rng: random.Random) -> object:
            stream = llm.stream(self.prompt(rng), **self.options(rng))
            return next(stream, None) if rng.random() < 0.5 else None

        def cancel(rng: random.Random) -> object:
            with self.lock:
                streams = list(self.streams)
            if streams:
                rng.choice(streams).cancel()
            time.sleep(0.01)
            return None

        def sequence(rng: random.Random) -> object:
            with llm.sequence(self.prompt(rng)[:20], seed=1) as sequence:
                for _ in range(5):
                    sequence.step()
                with sequence.fork() as fork:
                    return fork.step()

        kinds: list[Callable[[random.Random], object]]
        kinds = [
            one,
            several,
            branches,
            beams,
            probe,
            hooks,
            callback,
            stream,
            leave,
            forget,
            cancel,
            sequence,
        ]
        return {kind.__name__: kind for kind in kinds}

    def compare(self, index: int, result: Any) -> None:
        """A probe's tokens are those it has alone; all of them, unless the cache was full."""
        expected = self.answers[index]
        if result.stop_reason == "cache full":
            expected = expected[: len(result.tokens)]
        if result.tokens != expected:
            self.wrong(f"probe {index} gave {result.tokens} and alone {self.answers[index]}")

    def work(self, name: str, seed: int) -> None:
        rng = random.Random(seed)
        kinds = self.kinds()
        while time.monotonic() < self.ends:
            kind = rng.choice(list(kinds))
            with self._noted(name, kind):
                kinds[kind](rng)

    # -- what tasks do --

    async def tasks(self) -> None:
        await asyncio.gather(
            *(self.task(f"task {i}", self.plan.seed + 1000 + i) for i in range(self.plan.tasks))
        )

    async def task(self, name: str, seed: int) -> None:
        rng = random.Random(seed)
        llm = self.llm

        async def generate() -> None:
            await llm.agenerate(self.prompt(rng), **self.options(rng))

        async def several() -> None:
            await llm.agenerate([self.prompt(rng) for _ in range(3)], n=2, **self.options(rng))

        async def stream() -> None:
            async for _ in llm.astream(self.prompt(rng), **self.options(rng)):
                pass

        async def leave() -> None:
            async for _ in llm.astream(self.prompt(rng), **self.options(rng)):
                if rng.random() < 0.3:
                    break

        async def in_time() -> None:
            await asyncio.wait_for(
                llm.agenerate(self.prompt(rng), **self.options(rng)), rng.choice((0.01, 0.1))
            )

        async def cancelled() -> None:
            task = asyncio.create_task(generate() if rng.random() < 0.5 else stream())
            await asyncio.sleep(rng.choice((0.0, 0.001, 0.05)))
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

        async def probe() -> None:
            index = rng.randrange(N_PROBES)
            prompt, options = self.probes[index]
            self.compare(index, await llm.agenerate(prompt, **options))

        kinds: list[Callable[[], Awaitable[None]]]
        kinds = [generate, several, stream, leave, in_time, cancelled, probe]
        while time.monotonic() < self.ends:
            kind = rng.choice(kinds)
            with self._noted(name, f"async {kind.__name__}"):
                await kind()
            await asyncio.sleep(0)

    # -- looking after it --

    def _noted(self, name: str, kind: str) -> _Noted:
        return _Noted(self, name, kind)

    def wrong(self, what: str) -> None:
        with self.lock:
            if len(self.report.problems) < 20:
                self.report.problems.append(what)

    def look(self, begun: float) -> None:
        """Is everything as it should be, in the middle of it?"""
        now = time.monotonic()
        for name, (what, since) in list(self.doing.items()):
            if now - since > self.plan.patience:
                self.wrong(f"{name} has been at {what!r} for {now - since:.0f} s")
                self.doing.pop(name, None)
        try:
            self.llm.cells.check()
        except RuntimeError as error:
            self.wrong(f"after {now - begun:.0f} s the table of cells is wrong: {error}")
        stats = self.llm.cache.stats()
        if stats.free + stats.held + stats.parked != stats.cells:
            self.wrong(f"the cells do not add up: {stats}")
        if (megabytes := resident()) is not None:
            self.report.memory.append((now - begun, megabytes))

    def run(self) -> SoakReport:
        self.answers = []
        for prompt, options in self.probes:
            self.llm.cache.clear()
            self.answers.append(self.llm.generate(prompt, **options).tokens)
        self.report.done["alone"] = N_PROBES
        begun = time.monotonic()
        self.ends = begun + self.plan.seconds
        threads = [
            threading.Thread(target=self.work, args=(f"thread {i}", self.plan.seed + i), daemon=True)
            for i in range(self.plan.threads)
        ]
        threads.append(threading.Thread(target=lambda: asyncio.run(self.tasks()), daemon=True))
        for thread in threads:
            thread.start()
        told = 0.0
        while time.monotonic() < self.ends:
            time.sleep(min(self.plan.every, max(0.0, self.ends - time.monotonic())))
            self.look(begun)
            if time.monotonic() - told > 30:
                told = time.monotonic()
                self.tell(self.state(told - begun))
        limit = time.monotonic() + self.plan.patience
        for thread in threads:
            thread.join(max(0.0, limit - time.monotonic()))
        self.look(begun)
        if stuck := [f"{name} at {what!r}" for name, (what, _) in self.doing.items()]:
            self.wrong(f"stuck at the end: {', '.join(stuck)}")
        else:
            self.settle()
        self.check_memory()
        self.tell(self.state(time.monotonic() - begun))
        self.report.metrics = self.llm.metrics.as_dict()
        return self.report

    def settle(self) -> None:
        """All is done: nothing may be left."""
        gc.collect()
        limit = time.monotonic() + 10
        while self.llm.cache.stats().held and time.monotonic() < limit:
            time.sleep(0.02)
        if held := self.llm.cache.stats().held:
            self.wrong(f"{held} cells are held, and nobody is there")
        prompt, options = self.probes[0]
        self.compare(0, self.llm.generate(prompt, **options))
        metrics, seen = self.llm.metrics, self.report.done
        ended = sum(metrics.finished.values()) + metrics.failed
        for holds, what in (
            (metrics.added == ended, f"{metrics.added} requests were added and {ended} have ended"),
            (metrics.running == metrics.waiting == 0, f"{metrics.running} run and {metrics.waiting} wait"),
            (seen["QueueFull"] <= metrics.refused, f"{metrics.refused} refused, {seen['QueueFull']} seen"),
            (metrics.first_token.n <= metrics.added, f"{metrics.first_token.n} first tokens"),
            (metrics.width.n <= metrics.steps, f"{metrics.width.n} passes in {metrics.steps} steps"),
            (
                metrics.width.total <= metrics.prompt_tokens + metrics.decoded_tokens,
                f"{metrics.width.total:.0f} tokens in passes, {metrics.prompt_tokens} of prompts and "
                f"{metrics.decoded_tokens} decoded",
            ),
        ):
            if not holds:
                self.wrong(f"the metrics do not add up: {what}")

    def check_memory(self) -> None:
        memory = self.report.memory
        warm_up = min(WARM_UP, self.plan.seconds / 2)
        later = [megabytes for second, megabytes in memory if second >= warm_up]
        if len(later) >= 4:
            quarter = max(2, len(later) // 4)
            first, last = statistics.median(later[:quarter]), statistics.median(later[-quarter:])
            if last - first > max(SLACK, GROWTH * first):
                self.wrong(f"memory grew from {first:.0f} to {last:.0f} MB")

    def state(self, second: float) -> str:
        metrics = self.llm.metrics
        megabytes = self.report.memory[-1][1] if self.report.memory else 0.0
        return (
            f"{second:5.0f} s: {metrics.added} requests, {metrics.failed} failed, {metrics.refused} refused, "
            f"{metrics.preempted} times parked, {metrics.steps} steps, {megabytes:.0f} MB, "
            f"{len(self.report.problems)} problems"
        )


class _Noted:
    """Notes who is at what; what may happen is counted, and what may not is a problem."""

    def __init__(self, soak: _Soak, name: str, kind: str) -> None:
        self._soak, self._name, self._kind = soak, name, kind

    def __enter__(self) -> None:
        self._soak.doing[self._name] = self._kind, time.monotonic()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        soak = self._soak
        soak.doing.pop(self._name, None)
        with soak.lock:
            soak.report.done[self._kind] += 1
            if kind is not None:
                soak.report.done[kind.__name__] += 1
        if kind is None or issubclass(kind, (Mine, CacheFull, QueueFull, asyncio.TimeoutError, TimeoutError)):
            return True
        soak.wrong(f"{self._name} at {self._kind!r}: {kind.__name__}: {error}")
        return issubclass(kind, Exception)


def resident() -> float | None:
    """Megabytes of memory that this process has now, where the system says so."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return None
    return pages * PAGE / 1e6
