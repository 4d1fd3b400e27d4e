"""The engine: one step moves every running request forward by one forward pass.

    plan → run → hooks → take → emit

One thread at a time steps it, under its lock: synchronous callers step it themselves, for all who wait, and a
background thread (`worker.py`) does it for asynchronous ones. Hooks and callbacks may compute sequences; they
cannot step the engine that is calling them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from stretto.backends.base import Backend, Draw, GoesAhead, Prepares, SamplesRows
from stretto.cache.cells import Cells
from stretto.engine.arrivals import Arrivals
from stretto.engine.decoders.fused import Ahead
from stretto.engine.decoders.passes import LogitsPass
from stretto.engine.decoders.plain import PlainDecoder
from stretto.engine.encoding import Encoding
from stretto.engine.events import StepEvents
from stretto.engine.hooks import run_hooks
from stretto.engine.limits import Limits
from stretto.engine.metrics import Metrics
from stretto.engine.persistent_batch import PersistentBatch
from stretto.engine.plan import Plan
from stretto.engine.request import Request
from stretto.engine.runner import Runner
from stretto.engine.scheduler import Scheduler
from stretto.engine.track import Track
from stretto.errors import InvalidRequest, QueueFull
from stretto.hardware import fork_safety
from stretto.text.reasoning import Reasoning
from stretto.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from stretto.structured import Compiler

AnyRequest = Request[Any]

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
        self.arrivals = Arrivals()
        self.events = StepEvents()
        self._ahead = Ahead(self.runner, self.arrivals.interrupt)
        self.running_ahead = False  # tokens are made one by one in the backend's loop
        self._gains_ahead = backend.capabilities.ahead
        self._device = backend if isinstance(backend, Prepares) else None  # samples many rows at once
        self._samples = backend if isinstance(backend, SamplesRows) and backend.samples_rows else None
        loops = backend.capabilities.fused and not isinstance(backend, GoesAhead)
        self._n_batch = 2 if loops else 1  # requests, at least; a lone one may run in the backend's own loop
        self._batch: PersistentBatch | None = None  # of all running requests, while they just sample
        self._in_step = False
        self._n_steps = self._n_waiting = 0
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

    # -- requests --

    def add(self, *requests: AnyRequest) -> None:
        """Queue the requests of a call, all or none; they run from the next step on."""
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
        scheduler, metrics = self.scheduler, self.metrics
        begun, spent = time.perf_counter(), metrics.forward + metrics.sampling + metrics.encoding
        self.runner.history.tick(begun)
        if scheduler.changes.pending or scheduler.waiting:
            scheduler.sweep()
        else:
            scheduler.check_deadlines()
        n_tokens = 0 if self._samples is None else self._run_batch(self._samples)
        if not n_tokens:
            plan = scheduler.plan()
            if plan.missing_cells or plan.missing_slots:
                self._relieve(plan)
                return
            run_begun = time.monotonic()
            n_tokens = self._run(plan)
            if not plan.only_decodes:
                for request in scheduler.running:
                    if request.prompt_steps is not None:
                        request.note_prompt(run_begun)
            ready, hooked = scheduler.ready()
            n_decoded = metrics.decoded_tokens
            if not self._run_ahead(ready):
                self._take(ready, hooked)
            n_tokens += metrics.decoded_tokens - n_decoded  # those of the backend's own loop
            if plan.waiting_for_images or self.encoding.is_busy:
                self._encode(plan)
        if scheduler.changes.pending:
            scheduler.sweep()
        metrics.steps += 1
        metrics.running, metrics.waiting = len(scheduler.running), len(scheduler.waiting)
        spent = metrics.forward + metrics.sampling + metrics.encoding - spent
        now = time.perf_counter()
        metrics.python += now - begun - spent
        self.events.add(now, now - begun, n_tokens, metrics.running, metrics.waiting)

    def _run(self, plan: Plan) -> int:
        """Apply a plan: start the admitted requests and run its passes; return how many tokens they had."""
        scheduler, runner, metrics = self.scheduler, self.runner, self.metrics
        for request, matches in plan.admitted:
            scheduler.admit(request)
            for track, match in matches:
                runner.share(track, match)
        for source, target in plan.copies:
            runner.share_with(source, target)
        for one in plan.redo:
            one.redo_last()
        if plan.redo:  # some need no pass: they had the rows that their logits are made of
            plan.work = [(source, n) for source, n in plan.work if source.n_pending]
        n_tokens, forward = 0, metrics.forward
        if plan.only_decodes and not plan.redo and not plan.copies:
            n_tokens = len(plan.work)
            if n_tokens:
                runner.decode([source for source, _ in plan.work])
        elif plan.work:
            n_tokens = runner.run(plan.work)
        if plan.hidden:
            n_tokens += runner.run(plan.hidden, hidden=True)
        if n_tokens:
            scheduler.learn(n_tokens, metrics.forward - forward, plan.only_decodes)
            metrics.count_pass(n_tokens, len(plan.work) + len(plan.hidden))
        return n_tokens

    def _run_batch(self, device: SamplesRows) -> int:
        """Run and take a step of the persistent batch; 0 if the step needs a plan."""
        scheduler, batch = self.scheduler, self._batch
        running, states = scheduler.running, self.runner.states
        if not scheduler.waiting:
            self.runner.make_room_for_steps(len(running))
        room = min(scheduler.limits.tokens_per_step, self.cells.n_free)
        if states is not None:
            room = min(room, states.slots.n_free)
        is_same = batch is not None and not batch.is_over and bool(running) and batch.is_of(running)
        if not is_same or scheduler.waiting or self.encoding.is_busy or len(running) > room:
            if batch is not None:
                batch.settle()
            can_be = len(running) >= self._n_batch and not scheduler.waiting and not self.encoding.is_busy
            self._batch = batch = PersistentBatch.of(running, room) if can_be else None
        if batch is None:
            return 0
        forward, n = self.metrics.forward, batch.n
        batch.step(self.runner, device)
        if self._device is None:  # the pass is over
            scheduler.learn(n, self.metrics.forward - forward, only_decodes=True)
        self.metrics.count_pass(batch.n, batch.n)
        return batch.n

    def _take(self, ready: list[AnyRequest], hooked: list[AnyRequest]) -> None:
        """Run the hooks of requests whose logits are there, and let each take its tokens."""
        if hooked:
            run_hooks(hooked)
        if self._device is not None:
            self._prepare(ready)
        n_running = len(self.scheduler.running)
        for request in ready:
            if request.finished:  # a hook or a callback has ended it
                continue
            if request.is_expired:
                request.finish("timeout")
            else:
                request.advance(request.decoder.advance, n_running)

    def _prepare(self, ready: list[AnyRequest]) -> None:
        """Have rows that are on a device sampled together, before each request asks for its own."""
        draws: list[Draw] = []
        for request in ready:
            if isinstance(request.decoder, PlainDecoder) and not request.finished:
                request.advance(request.decoder.add_draws, draws)
        self.sample_ahead(draws)

    def sample_ahead(self, draws: list[Draw]) -> None:
        """Sample rows on the backend's device together, if it can: whoever asks for one has it then."""
        if self._device is not None and draws:
            begun = time.perf_counter()
            self._device.prepare(draws)
            self.metrics.sampling += time.perf_counter() - begun

    def _run_ahead(self, ready: list[AnyRequest]) -> bool:
        """Let the only request run in the backend's own loop, if it asked for that and there is room.

        Or unasked, where the backend gains by it: but not if its reader takes one token after the other.
        """
        if len(ready) != 1 or len(self.scheduler.running) != 1:
            return False
        request, decoder = ready[0], ready[0].decoder
        if not isinstance(decoder, PlainDecoder) or request.is_expired:
            return False
        gains = self._gains_ahead and decoder.gains_ahead and not request.single_steps
        if not (decoder.params.fused or gains):
            return False
        self.running_ahead = True
        try:
            ran = request.advance(self._ahead.run, decoder, request.deadline)
        finally:
            self.running_ahead = False
        return request.finished or bool(ran)

    def _encode(self, plan: Plan) -> None:
        """Encode images that requests wait for; an error ends those that wait for it, and no others."""
        self.encoding.step(plan.waiting_for_images, plan.blocked)
        if self.encoding.has_failed:
            for request in self.scheduler.running:
                for source in () if request.finished else request.sources:
                    if error := self.encoding.error_of(source.track):
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
                self.runner.close()
