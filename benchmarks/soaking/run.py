"""The soak itself: starts threads and tasks, checks while they run and at the end."""

from __future__ import annotations

import asyncio
import gc
import random
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

from soaking.draw import N_PROBES, Draw
from soaking.kinds import task_kinds, thread_kinds
from soaking.plan import Mine, SoakPlan, SoakReport, resident
from stretto.errors import CacheFull, QueueFull
from stretto.llm import LLM

WARM_UP_SECONDS = 60.0  # after which memory should be flat; less in a short soak
GROWTH = 0.03  # of memory that is allowed all the same,
SLACK_MB = 16.0  # and megabytes


def soak(llm: LLM, plan: SoakPlan, tell: Callable[[str], None] = lambda line: None) -> SoakReport:
    """Run it; `tell` gets a line every now and then."""
    return Soak(llm, plan, tell).run()


class Soak:
    """One soak of one model."""

    def __init__(self, llm: LLM, plan: SoakPlan, tell: Callable[[str], None]) -> None:
        self.llm, self.plan, self.tell = llm, plan, tell
        self.report = SoakReport()
        self.lock = threading.Lock()
        self.ends = 0.0
        self.doing: dict[str, tuple[str, float]] = {}  # who is at what since when
        self.draw = Draw(llm, plan.seed)
        self.probes = self.draw.probes
        self.answers: list[list[int]] = []
        self.kinds = thread_kinds(self.draw, self.compare)

    def compare(self, index: int, result: Any) -> None:
        """A probe's tokens are those it has alone; all of them, unless the cache was full."""
        expected = self.answers[index]
        if result.stop_reason == "cache full":
            expected = expected[: len(result.tokens)]
        if result.tokens != expected:
            self.wrong(f"probe {index} gave {result.tokens} and alone {self.answers[index]}")

    def work(self, name: str, seed: int) -> None:
        """What one thread does."""
        rng = random.Random(seed)
        while time.monotonic() < self.ends:
            kind = rng.choice(list(self.kinds))
            with Noted(self, name, kind):
                self.kinds[kind](rng)

    async def tasks(self) -> None:
        """What the event loop does."""
        await asyncio.gather(
            *(self.task(f"task {i}", self.plan.seed + 1000 + i) for i in range(self.plan.tasks))
        )

    async def task(self, name: str, seed: int) -> None:
        """What one task does."""
        rng = random.Random(seed)
        kinds = task_kinds(self.draw, self.compare, rng)
        while time.monotonic() < self.ends:
            kind = rng.choice(list(kinds))
            with Noted(self, name, kind):
                await kinds[kind]()
            await asyncio.sleep(0)

    # -- looking after it --

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
        warm_up = min(WARM_UP_SECONDS, self.plan.seconds / 2)
        later = [megabytes for second, megabytes in memory if second >= warm_up]
        if len(later) >= 4:
            quarter = max(2, len(later) // 4)
            first, last = statistics.median(later[:quarter]), statistics.median(later[-quarter:])
            if last - first > max(SLACK_MB, GROWTH * first):
                self.wrong(f"memory grew from {first:.0f} to {last:.0f} MB")

    def state(self, second: float) -> str:
        metrics = self.llm.metrics
        megabytes = self.report.memory[-1][1] if self.report.memory else 0.0
        return (
            f"{second:5.0f} s: {metrics.added} requests, {metrics.failed} failed, {metrics.refused} refused, "
            f"{metrics.preempted} times parked, {metrics.steps} steps, {megabytes:.0f} MB, "
            f"{len(self.report.problems)} problems"
        )


class Noted:
    """Notes who is at what; what may happen is counted, and what may not is a problem."""

    def __init__(self, soak: Soak, name: str, kind: str) -> None:
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
