"""Threads that compile grammars: a few for the whole process, which all callers share.

A grammar may come from a stranger, so its work is bounded. Its processor time is limited, never the clock: a
busy machine refuses nothing that an idle one takes. One caller has at most half of the threads, so its slow
grammars delay only its own, and callers take turns. `check_budget` is called wherever work may be long; it
ends jobs that have used up their time and those that nobody waits for. Native parts cannot be interrupted:
they have limits of their own (`compiler.LIMITS`), and the budget is checked between them.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future
from math import inf
from typing import Any, TypeVar, cast

from stretto.errors import GrammarsBusy, InvalidGrammar
from stretto.hardware import fork_safety

MAX_CPU_SECONDS = 5.0  # for a grammar; most take milliseconds
N_WORKERS = min(max(2, os.cpu_count() or 1), 4)  # threads at work, half of them for one caller
MAX_WAITING = 32  # jobs of one caller
STACK_BYTES = 256 << 20  # address space; memory is taken as it is used

Value = TypeVar("Value")

_here = threading.local()  # `job`: the one that this thread works on


class Stopped(Exception):
    """The job has used up its time, or nobody waits for it any more."""

    def error(self) -> InvalidGrammar:
        """The same for the caller."""
        return InvalidGrammar(
            f"the grammar takes more than {MAX_CPU_SECONDS:g} s of processor time to compile; simplify it",
            param="grammar",
        )


class Job(Future[Any]):
    """Work for one caller, and its result. Cancelling it stops it, also while it runs."""

    def __init__(self, work: Callable[[], Any], caller: str) -> None:
        super().__init__()
        self._work, self.caller = work, caller
        self._is_abandoned = False
        self._begun = 0.0

    def cancel(self) -> bool:
        """Stop the work; its thread ends at the next check."""
        self._is_abandoned = True
        return super().cancel()

    def check(self) -> None:
        """Raise if the job has used up its time, or nobody waits for it."""
        if self._is_abandoned or time.thread_time() - self._begun > MAX_CPU_SECONDS:
            raise Stopped

    def work(self) -> None:
        """Run it in this thread."""
        if not self.set_running_or_notify_cancel():
            return
        _here.job = self
        self._begun = time.thread_time()
        try:
            self.set_result(self._work())
        except Stopped as stopped:
            self.set_exception(stopped.error())
        except BaseException as error:
            self.set_exception(error)
        finally:
            del _here.job


def check_budget() -> None:
    """Raise if this thread works on a job whose time is up; elsewhere nothing is limited."""
    job: Job | None = getattr(_here, "job", None)
    if job is not None:
        job.check()


class Workers:
    """Runs jobs in threads that start with the first and end with the last one."""

    def __init__(self, n: int = N_WORKERS) -> None:
        self._n = n
        self._lock = fork_safety.lock()
        self._waiting: dict[str, deque[Job]] = {}  # by caller; whose turn it is comes first
        self._running: Counter[str] = Counter()
        fork_safety.abandon_in_child(self)

    def submit(self, work: Callable[[], Any], caller: str = "", most: float = MAX_WAITING) -> Job:
        """Queue a job; raises `GrammarsBusy` if this caller has `most` there."""
        job = Job(work, caller)
        with self._lock:
            queue = self._waiting.setdefault(caller, deque())
            if len(queue) >= most:
                queue = self._waiting[caller] = deque(one for one in queue if not one.cancelled())
            if len(queue) >= most:
                raise GrammarsBusy(
                    f"{len(queue)} grammars of this caller wait to be compiled; try again later",
                    n_waiting=len(queue),
                )
            queue.append(job)
            if (first := self._next()) is not None:
                self._start(first)
        return job

    def run(self, work: Callable[[], Value], caller: str = "") -> Value:
        """The result of a job, or its exception; within a job, the work is part of that."""
        if getattr(_here, "job", None) is not None:
            return work()
        job = self.submit(work, caller, inf)  # threads that wait here are all there can be
        try:
            return cast(Value, job.result())
        except BaseException:
            job.cancel()
            raise

    def abandon(self) -> None:
        """Forget threads that a forked child does not have."""
        self._waiting, self._running = {}, Counter()

    def _next(self) -> Job | None:
        """The job whose turn it is, which counts as running; its caller goes to the end of the line."""
        if self._running.total() >= self._n:
            return None
        for caller, queue in list(self._waiting.items()):
            while queue and queue[0].cancelled():
                queue.popleft()
            if queue and self._running[caller] >= max(1, self._n // 2):
                continue
            del self._waiting[caller]
            if queue:
                job = queue.popleft()
                if queue:
                    self._waiting[caller] = queue
                self._running[caller] += 1
                return job
        return None

    def _start(self, job: Job) -> None:
        thread = threading.Thread(target=self._work, args=(job,), name="stretto-grammar", daemon=True)
        before = threading.stack_size(STACK_BYTES)
        try:
            thread.start()
        except BaseException:
            self._running[job.caller] -= 1
            raise
        finally:
            threading.stack_size(before)

    def _work(self, job: Job | None) -> None:
        while job is not None:
            job.work()
            with self._lock:
                self._running -= Counter([job.caller])
                job = self._next()


WORKERS = Workers()  # of this process
