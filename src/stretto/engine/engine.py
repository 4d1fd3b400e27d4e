"""The engine: one step moves every running request forward by one forward pass.

    plan → run → take → emit

One thread at a time steps it, under its lock: synchronous callers step it themselves, for all who wait, and a
background thread (`worker.py`) does it for asynchronous ones. Hooks and callbacks may compute sequences; they
cannot step the engine that is calling them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from stretto.backends.base import Backend
from stretto.cache.cells import Cells
from stretto.cache.disk import DiskStore
from stretto.engine.decoders.passes import LogitsPass
from stretto.engine.edited import reuse_edited
from stretto.engine.encoding import Encoding
from stretto.engine.limits import Limits
from stretto.engine.metrics import Metrics, StepLog
from stretto.engine.request import AnyRequest, Request
from stretto.engine.runner import Runner
from stretto.engine.scheduler import Plan, Scheduler
from stretto.engine.steps import FusedLoop, StepForm, step_forms
from stretto.engine.stored import StoredPrefixes
from stretto.engine.track import Track
from stretto.errors import InvalidRequest, QueueFull
from stretto.hardware import fork_safety
from stretto.text.reasoning import Reasoning
from stretto.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from stretto.structured import Compiler


# Threads that are about to ask for the engine's lock, so that a thread that steps lets them have it.

LOCK_HANDOFF_SECONDS = 0.002  # between two steps, at most


class LockQueue:
    """Counts the threads that are adding requests; `interrupt` ends a fused loop early for them."""

    def __init__(self) -> None:
        self._changed = fork_safety.condition()
        self._n = 0
        self.interrupt = np.zeros(1, np.uint8)  # read by the fused loop

    @contextmanager
    def arriving(self) -> Iterator[None]:
        """Requests are being added. That needs the engine's lock, which a thread that releases it and takes
        it again at once would win race after race."""
        with self._changed:
            self._n += 1
            self.interrupt[0] = 1
        try:
            yield
        finally:
            with self._changed:
                self._n -= 1
                self.interrupt[0] = self._n > 0
                self._changed.notify_all()

    def hand_over(self) -> None:
        """Wait a moment for threads that are arriving."""
        if self._n:
            with self._changed:
                self._changed.wait_for(lambda: not self._n, LOCK_HANDOFF_SECONDS)


WAIT_SECONDS = 0.01  # for a notification; the thread that holds the lock may not be stepping


class Engine:
    """A runner, the requests that wait for it, and the step."""

    def __init__(
        self,
        backend: Backend,
        tokenizer: Tokenizer,
        limits: Limits | None = None,
        prefix_cache: bool = True,
        fingerprint: Callable[[], str] | None = None,
    ) -> None:
        limits = (limits or Limits()).on(backend)
        self.runner = Runner(backend, prefix_cache, limits.tokens_per_step, limits.checkpoint_bytes)
        self.lock = self.runner.lock
        self.metrics: Metrics = self.runner.metrics
        self.tokenizer = tokenizer
        self.fingerprint = fingerprint  # identifies the model in saved sequences
        self.encoding = Encoding(self.runner, limits.max_step_ms)
        self.scheduler = Scheduler(self.runner, self.encoding, limits)
        self.reasoning: Reasoning | None = None  # how the model marks it, if it thinks before it answers
        self.arrivals = LockQueue()
        self.stored: StoredPrefixes | None = None  # prefixes on disk
        self.events = StepLog()
        self.forms = step_forms(self.scheduler, self.runner, self.arrivals.interrupt)
        self._form: StepForm = self.forms[-1]  # of the last step
        self._in_step = False
        self._n_steps = self._n_waiting = 0
        self._held_second = -1  # in which held cells were counted last
        self._stepped = fork_safety.condition()  # notified after every step
        fork_safety.abandon_in_child(self)

    @property
    def backend(self) -> Backend:
        """The backend that runs the model."""
        return self.runner.backend

    @cached_property
    def grammars(self) -> Compiler:
        """Compiles grammars; made, and imported, for the first one."""
        from stretto.structured import Compiler

        return Compiler(self.tokenizer, self.backend.spec.n_vocab)

    @property
    def cells(self) -> Cells:
        """The table of cells."""
        return self.runner.cells

    # -- prefixes on disk --

    def keep_on_disk(self, store: DiskStore, identity: Callable[[], str]) -> None:
        """Keep prefixes in a store from now on, as computed by `identity`, and look for them there."""
        self.stored = StoredPrefixes(self.runner, store, identity, self._arrived)

    @contextmanager
    def _arrived(self) -> Iterator[None]:
        """The lock, for a thread that waits for it as an arriving request does."""
        with self.arrivals.arriving(), self.lock:
            yield

    def _load_stored(self, tracks: Iterable[Track]) -> None:
        """Bring the prefixes of tracks that are on disk into cells, before they are queued."""
        if self.stored is not None:
            for track in tracks:
                self.stored.load(track)

    def _reuse_edited(self, tracks: Iterable[Track]) -> None:
        """Give tracks that allow it the cells of cached texts that theirs are edits of."""
        for track in tracks:
            if track.edits != "recompute":
                with self._arrived():
                    self.runner.check_open()
                    reuse_edited(self.runner, track, lambda branch: self.compute([branch]))

    # -- requests --

    def add(self, *requests: AnyRequest) -> None:
        """Queue the requests of a call, all or none; they run from the next step on."""
        if self.stored is not None and requests:
            with self.arrivals.arriving(), self.lock:  # nothing is read for requests that are refused
                self.runner.check_open()
                self.scheduler.check_room(requests)
            sources = [
                one for request in requests if request.decoder.reuses_prefix for one in request.sources
            ]
            self._load_stored(source.track for source in sources)
        for request in requests:
            if request.decoder.reuses_prefix:
                self._reuse_edited(source.track for source in request.sources)
        with self.arrivals.arriving(), self.lock:
            self.runner.check_open()
            self.scheduler.add(requests)

    def step(self) -> None:
        """Move all running requests forward by one forward pass."""
        with self.lock:
            self.runner.check_open()
            self.check_may_step()
            self.runner.recover()
            self._in_step = True
            try:
                self._step()
            finally:
                self._in_step = False
                self._n_steps += 1
                if self._n_waiting:
                    self._notify()

    def _step(self) -> None:
        begun, accounted = time.perf_counter(), self.metrics.accounted
        self.runner.history.tick(begun)
        plan = self.scheduler.plan(self._form.settle)
        if plan.is_short:
            self._relieve(plan)
            return
        self._form = form = next(form for form in self.forms if form.fits(plan))
        n_tokens = form.run(plan)
        n_looped = form.take(plan)
        if plan.tokens:
            self.scheduler.charge(plan, n_looped)
        n_tokens += n_looped
        self._emit(plan, n_tokens, begun, accounted)

    def _emit(self, plan: Plan, n_tokens: int, begun: float, accounted: float) -> None:
        """Encode images that requests wait for, let go of those that have ended, and count the step."""
        scheduler, metrics = self.scheduler, self.metrics
        if plan.waiting_for_images or self.encoding.is_busy:
            self._encode(plan)
        if scheduler.changes.pending:
            scheduler.sweep()
            if not scheduler.running:
                self._form.settle()
        metrics.steps += 1
        metrics.running, metrics.waiting = len(scheduler.running), len(scheduler.waiting)
        if not scheduler.running or int(begun) != self._held_second:
            self._held_second = int(begun)
            metrics.held_cells = self.runner.n_held
        now = time.perf_counter()
        metrics.python += now - begun - (metrics.accounted - accounted)
        self.events.add(now, now - begun, n_tokens, metrics.running, metrics.waiting)

    @property
    def is_looping(self) -> bool:
        """Whether a step gives its tokens out one by one, as the backend's own loop makes them."""
        return isinstance(self._form, FusedLoop) and self._form.is_looping

    def _encode(self, plan: Plan) -> None:
        """Encode images that requests wait for; an error ends those that wait for it, and no others."""
        self.encoding.step(plan.waiting_for_images, plan.blocked)
        if self.encoding.has_failed:
            for request in self.scheduler.running:
                for source in () if request.finished else request.sources:
                    if error := self.encoding.find_error(source.track):
                        request.fail(error)

    def _relieve(self, plan: Plan) -> None:
        """Make cells free that the next step needs: drafts go first, then a request is preempted or ends."""
        scheduler, victim = self.scheduler, plan.victim
        dropped = [request for request in scheduler.running if request.decoder.drop_draft()]
        if dropped or victim is None:
            return
        if len(scheduler.running) > 1 and victim.decoder.can_preempt:
            victim.decoder.preempt()
            scheduler.requeue(victim)
            self.metrics.preempted += 1
        elif victim.output.has_tokens:
            victim.finish("length", "cache full")
        else:
            victim.fail(self.runner.cache_full(plan.missing_cells, plan.claimed, plan.missing_slots))
        scheduler.sweep()

    # -- stepping from any thread --

    def check_may_step(self) -> None:
        """Raise within a hook or callback, which the step is waiting for."""
        if self._in_step:
            raise InvalidRequest(
                "a hook or callback cannot run requests of the model that is calling it: it may compute "
                "sequences (llm.sequence, seq.logits, llm.step); start requests from another place"
            )

    def step_until(self, done: Callable[[], bool]) -> None:
        """Step until `done`, or wait while another thread steps."""
        while not done():
            seen = self._n_steps
            if self.lock.acquire(blocking=False):
                try:
                    if self._n_steps == seen or not done():  # or else another thread has stepped meanwhile
                        self.step()
                finally:
                    self.lock.release()
                self.arrivals.hand_over()
            else:
                with self._stepped:
                    self._n_waiting += 1
                    if self._n_steps == seen and not self._is_free():
                        self._stepped.wait(WAIT_SECONDS)
                    self._n_waiting -= 1
        if self._n_waiting:
            self._notify()  # another thread has to step now

    def _notify(self) -> None:
        with self._stepped:
            self._stepped.notify_all()

    def _is_free(self) -> bool:
        """Whether no thread has the lock just now."""
        if free := self.lock.acquire(blocking=False):
            self.lock.release()
        return free

    def complete(self, groups: list[list[AnyRequest]], tell: Callable[[], None] = lambda: None) -> None:
        """Queue the first of each group, which starts the others, and step until all have finished.

        `tell` is called after each step.
        """
        requests = [request for group in groups for request in group]
        left = requests[::-1]

        def done() -> bool:
            while left and left[-1].finished:
                left.pop()
            tell()
            return not left

        try:
            if self.is_stepping_here:
                self.check_may_step()
            for request in requests:
                request.output.is_read_at_end = True
            while True:
                try:
                    self.add(*(first for first, *_ in groups))
                    break
                except QueueFull:
                    if len(groups) == 1:
                        raise
                self.step_until(lambda: self.scheduler.has_room)  # a list of prompts waits for the others
            self.step_until(done)
        finally:
            with self.lock:  # after an error or Ctrl-C the others give their cells back
                for request in requests:
                    request.cancel()

    @property
    def is_stepping_here(self) -> bool:
        """Whether this very thread is in the middle of a step, in a callback say."""
        if not self._in_step or not self.lock.acquire(blocking=False):
            return False
        try:
            return self._in_step
        finally:
            self.lock.release()

    def settle(self) -> None:
        """End requests that were abandoned, unless a step is under way, which does it."""
        with self.lock:
            if self.scheduler.changes.pending and not self._in_step:
                self.scheduler.sweep()

    # -- sequences --

    def compute(self, tracks: Iterable[Track]) -> None:
        """Compute all pending tokens of some tracks: at once, or batched with the requests that run."""
        several = list(tracks)
        self._load_stored(several)
        with self.lock:
            self.runner.check_open()
            if not self._in_step:
                self.runner.recover()
            if self._in_step or self.scheduler.idle:
                self._compute_now(several)
                return
            request = Request(LogitsPass(self.runner, several), self.metrics, urgent=True)
            self.complete([[request]])
            if request.error is not None:
                raise request.error

    def _compute_now(self, tracks: list[Track]) -> None:
        if not any(track.has_images for track in tracks):
            self.runner.compute(tracks)
            return
        with self.encoding.of(tracks):
            self.runner.compute(tracks)

    @contextmanager
    def computed(self, track: Track, everything: bool = False) -> Iterator[None]:
        """Within it, under the lock, a track has all its cells, and its images their vectors."""
        with self.lock, self.encoding.of([track], everything):
            self.compute([track])
            yield

    def abandon(self) -> None:
        """Refuse everything from now on: this is a forked child."""
        self.runner.abandon()
        self._in_step = False
        self._n_waiting = 0

    def close(self) -> None:
        """Cancel everything and free the backend."""
        with self.lock:
            if not self.runner.closed:
                self.scheduler.cancel_all()
        if self.stored is not None:
            self.stored.finish()
        with self.lock:
            if not self.runner.closed:
                self.runner.close()
