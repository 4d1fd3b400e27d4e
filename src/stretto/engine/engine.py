"""The engine: one step moves every running request forward by one forward pass.

    schedule → forward → hooks → sample → emit

One thread at a time steps it, under its lock; whoever waits for a token takes the lock and steps for all.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from itertools import count
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from stretto.backends.base import Backend, Batch, Decoding
from stretto.cache.cells import Cells
from stretto.cache.items import Images, Pixels
from stretto.cache.prefix import PrefixCache
from stretto.cache.radix import common
from stretto.engine.encoding import Encoding
from stretto.engine.hooks import run_hooks
from stretto.engine.metrics import Metrics
from stretto.engine.pictures import REMEDY
from stretto.engine.request import Request
from stretto.engine.scheduler import Limits, Scheduler
from stretto.engine.sequence import Sequence
from stretto.engine.tokens import checked_tokens
from stretto.engine.worker import Worker
from stretto.errors import CacheFull, InvalidRequest
from stretto.structured import Compiler
from stretto.text.tokenizer import Tokenizer

Floats = NDArray[np.float32]

FIRST_ID = 1_000_000  # of our own sequences; ids below are for batches made by hand


class Engine:
    """A backend, its cells, and the requests that run on them."""

    def __init__(
        self,
        backend: Backend,
        tokenizer: Tokenizer,
        limits: Limits | None = None,
        prefix_cache: bool = True,
        fingerprint: Callable[[], str] | None = None,
    ) -> None:
        self.backend = backend
        self.tokenizer = tokenizer
        self.fingerprint = fingerprint  # tells the model from others, for saved sequences
        self.spec = backend.spec
        self.cells = Cells(backend.n_cells)
        self.prefixes = PrefixCache(self.cells)
        self.prefix_cache = prefix_cache
        self.context_length = min(self.spec.context_length, backend.n_cells)
        self.lock = threading.RLock()
        self.scheduler = Scheduler(self, limits or Limits())
        self.chunk = self.scheduler.limits.max_tokens_per_step
        self.live: WeakValueDictionary[int, Sequence] = WeakValueDictionary()
        self.orphans: deque[tuple[int, list[int], int | None]] = deque()  # sequences nobody closed
        self.closed = False
        self.images: Images | None = None  # what makes tokens of images, if anything does
        self.encoding = Encoding(self)
        self._ids = count(FIRST_ID)
        self.metrics = Metrics()
        self.grammars = Compiler(tokenizer, self.spec.n_vocab)
        self.worker = Worker(self)  # for callers who cannot step
        self._n_steps = self._n_waiting = 0
        self.depth = 0  # steps we are in: a hook or callback may step too
        self._news = threading.Condition()  # told after every step

    # -- requests --

    def add(self, *requests: Request) -> None:
        """Queue the requests of a call, all or none; they run from the next step on."""
        with self.worker.arriving(), self.lock:
            self.alive()
            self.scheduler.add(requests)

    def step(self) -> None:
        """Move all running requests forward by one forward pass."""
        with self.lock:
            self._step()

    def _step(self) -> None:
        if self.closed:
            self.alive()
        self.depth += 1
        try:
            self._move()
        finally:
            self.depth -= 1
            self._n_steps += 1
            if self._n_waiting:
                self._tell()

    def _move(self) -> None:
        scheduler, metrics = self.scheduler, self.metrics
        begun, forward, sampling = time.perf_counter(), metrics.forward, metrics.sampling
        encoding = metrics.encoding
        work = scheduler.schedule()
        try:
            n_tokens = self.run(work)
        except CacheFull as error:
            metrics.preempted += scheduler.make_room(error)
            return
        if work:
            scheduler.pace.learn(n_tokens, metrics.forward - forward)
            metrics.width.add(n_tokens)
        ready, hooked = scheduler.ready()
        if len(ready) == 1 and ready[0].params.fused and not ready[0].sequence.n_hooked:
            ready[0].advance(fused=True)
        else:
            self._advance(ready, hooked)
        self.encoding.slice(scheduler.alone)
        if scheduler.stale:
            scheduler.sweep()
        metrics.steps += 1
        metrics.running, metrics.waiting = len(scheduler.running), len(scheduler.waiting)
        spent = metrics.forward - forward + metrics.sampling - sampling + metrics.encoding - encoding
        metrics.python += time.perf_counter() - begun - spent

    def _advance(self, ready: list[Request], hooked: list[Request]) -> None:
        """Run the hooks of requests whose logits are there, and let each sample its token."""
        seen = self._n_steps
        if hooked:
            run_hooks(hooked)
        for request in ready:
            # A hook or callback may have ended others, or stepped the engine, and they have gone on already.
            if not request.finished and ((not hooked and self._n_steps == seen) or request.due):
                request.advance()

    def step_until(self, done: Callable[[], bool]) -> None:
        """Step until `done`, or wait while somebody else steps."""
        while not done():
            seen = self._n_steps
            if self.lock.acquire(blocking=False):
                try:
                    if self._n_steps == seen or not done():  # or else somebody has stepped meanwhile
                        self._step()
                        if self.depth and self.scheduler.asleep and not done():
                            raise InvalidRequest(
                                "a hook or callback waits for its own request, which waits for it to return"
                            )
                finally:
                    self.lock.release()
            else:
                with self._news:
                    self._n_waiting += 1
                    if self._n_steps == seen and not self._is_free():
                        self._news.wait(0.01)  # not for ever: who has the lock may not be stepping
                    self._n_waiting -= 1
        if self._n_waiting:
            self._tell()  # somebody else has to step now

    def _tell(self) -> None:
        """Wake up those who wait for a step."""
        with self._news:
            self._news.notify_all()

    def _is_free(self) -> bool:
        """Whether nobody has the lock just now."""
        if free := self.lock.acquire(blocking=False):
            self.lock.release()
        return free

    def complete(self, groups: list[list[Request]]) -> None:
        """Queue the first of each group, which starts the others, and step until all have finished."""
        requests = [request for group in groups for request in group]
        left = requests[::-1]

        def done() -> bool:
            while left and left[-1].finished:
                left.pop()
            return not left

        try:
            self.add(*(first for first, *_ in groups))
            self.step_until(done)
        finally:
            with self.lock:  # after an error or Ctrl-C the others give their cells back
                for request in requests:
                    request.cancel()

    # -- sequences --

    def compute(self, sequences: Iterable[Sequence]) -> None:
        """Compute all pending tokens of some sequences, together."""
        with self.lock:
            self.alive()
            several = list(sequences)
            if len(several) == 1 and several[0].at_end:
                self._decode(several)
                return
            for sequence in several:
                self.reuse(sequence)
            with self.encoding.of(several):
                self._compute_all(several)

    def _compute_all(self, several: list[Sequence]) -> None:
        """Passes until nothing of some sequences is pending."""
        while waiting := [sequence for sequence in several if sequence.n_pending]:
            room, work = self.chunk, []
            for sequence in waiting[:room]:
                # Each gets at least one token, the first as much as there is room for.
                n = min(sequence.n_pending, max(1, room - len(waiting)))
                work.append((sequence, n))
                room -= n
            self.run(work)

    def run(self, work: list[tuple[Sequence, int]]) -> int:
        """One forward pass over the next n pending tokens of each sequence; return how many that are."""
        if not work:
            return 0
        for sequence, n in work:
            if n != 1 or not sequence.at_end:
                break
        else:
            self._decode([sequence for sequence, _ in work])
            return len(work)
        batch, wanted = Batch(), []
        for sequence, n in work:
            wanted.append(sequence.enter(batch, n))
        self.make_room(len(batch))
        batch.place(self.cells)
        rows, start = self._compute(batch), 0
        for (sequence, n), n_rows in zip(work, wanted, strict=True):
            if n > sequence.at_once:
                self.metrics.prompt_tokens += n
            else:
                self.metrics.decoded_tokens += n
            sequence.leave(rows[start : start + n_rows])
            start += n_rows
        return len(batch)

    def _decode(self, sequences: list[Sequence]) -> None:
        """`run` for the step that is taken most: the last token of each sequence, behind its end."""
        if self.orphans or len(sequences) > self.cells.n_free:
            self.make_room(len(sequences))
        tokens = [sequence.history[-1] for sequence in sequences]
        batch = Decoding(self.cells, tokens, [sequence.id for sequence in sequences])
        rows = self._compute(batch)
        for i, sequence in enumerate(sequences):  # iterating over the rows takes longer
            sequence.computed(rows[i])
        self.metrics.decoded_tokens += len(sequences)

    def _compute(self, batch: Batch, hidden: bool = False) -> Floats:
        """Run a batch that has its cells, and take them back if that fails."""
        begun, cpu = time.perf_counter(), time.thread_time()
        try:
            return self.backend.hidden(batch) if hidden else self.backend.forward(batch)
        except BaseException:
            batch.unplace(self.cells)
            raise
        finally:
            self.metrics.forward += time.perf_counter() - begun
            self.metrics.forward_cpu += time.thread_time() - cpu

    def forward(self, batch: Batch, hidden: bool = False) -> Floats:
        """Place a batch and run it: float32[n_wanted, n_vocab], or with `hidden` the final hidden states.

        On failure nothing is changed.
        """
        with self.worker.arriving(), self.lock:
            self.alive()
            batch.check(self.spec.n_vocab, self.spec.n_embd, self.context_length)
            self.make_room(len(batch))
            batch.place(self.cells)
            return self._compute(batch, hidden)

    def shift(self, sequence: int, start: int, stop: int | None, delta: int) -> None:
        """Move a sequence's tokens to other positions, turning their K; shared cells are copied first."""
        with self.lock:
            self.backend.capabilities.require("shift", self.backend.name)
            self.make_room(self.cells.count_shared(sequence, start, stop))
            old, new = self.cells.unshare(sequence, start, stop)
            if len(old):
                self.backend.copy_cells(old, new)
            moved = self.cells.shift(sequence, start, stop, delta)
            if len(moved):
                self.backend.turn_cells(moved, delta)

    # -- what stays in the cache --

    def reuse(self, sequence: Sequence) -> None:
        """Let a sequence without cells share the longest beginning that has been computed already.

        Its last token is left out, so that there is something to compute logits from.
        """
        if not self.prefix_cache or self.cells.count(sequence.id) or len(sequence) < 2:
            return
        if sequence.position != len(sequence):
            return  # its first token was moved away from position 0
        items = sequence.history[:-1]
        source, n = self.prefixes.match(items)
        for other in self.live.values():
            if other is not sequence and (shared := common(other.exact_history(), items)) > n:
                source, n = other.id, shared
        self.prefixes.lookups += 1
        if source is not None and n:
            self.cells.copy(source, sequence.id, 0, n)
            self.prefixes.hits += 1
            self.prefixes.tokens_saved += n
            self.metrics.cached_tokens += n
        if not sequence.preempted:
            sequence.n_cached = n

    def share(self, source: Sequence, sequence: Sequence) -> None:
        """Give a sequence without cells those of its tokens that another one begins with too."""
        self.cells.copy(source.id, sequence.id, 0, common(source.exact_history(), sequence.history[:-1]))

    def unuse(self, sequence: Sequence) -> None:
        """Undo `reuse`, as if nobody had asked."""
        n = self.cells.count(sequence.id)
        self.cells.remove(sequence.id)
        if self.prefix_cache and len(sequence) >= 2:
            self.prefixes.lookups -= 1
            self.prefixes.hits -= n > 0
            self.prefixes.tokens_saved -= n
            self.metrics.cached_tokens -= n

    def park(self, sequence: int, tokens: list[int], exact: int | None, keep_id: bool = False) -> None:
        """Keep a sequence's cells for others that begin like it, until somebody needs the room."""
        n = min(len(tokens), self.cells.count(sequence))
        n = n if exact is None else min(n, exact)
        if not self.prefix_cache or not n:
            self.cells.remove(sequence)
            return
        parked = sequence
        if keep_id:  # the sequence goes on; its cells go to an id of their own
            parked = self.new_id()
            self.cells.copy(sequence, parked, 0, n)
            self.cells.remove(sequence)
        self.prefixes.park(parked, tokens[:n])

    def make_room(self, wanted: int) -> None:
        """See that so many cells are free: parked sequences go first, then `CacheFull` is raised."""
        if wanted <= self.cells.n_free and not self.orphans:
            return
        self.tidy()
        if wanted > self.cells.n_free and not self.prefixes.make_room(wanted):
            raise CacheFull(self._who_holds(wanted))

    def n_available(self) -> int:
        """How many cells are free or can be made so."""
        return self.cells.n_free + self.prefixes.n_evictable()

    def tidy(self) -> None:
        """Park what belonged to sequences that nobody holds any more."""
        while self.orphans:
            self.park(*self.orphans.popleft())

    def _who_holds(self, wanted: int) -> str:
        cells = self.cells
        held = sorted(((cells.count(i), i) for i in cells.sequences), reverse=True)
        largest = ", ".join(f"sequence {i} with {n}" for n, i in held[:3])
        pinned = self.prefixes.stats().pinned
        return (
            f"{wanted} cells are needed and {cells.n_free} of {len(cells)} are free; {cells.n_used} are held "
            f"by {len(held)} sequences ({pinned} of them pinned), the largest are {largest}; close "
            "sequences, or load the model with more cells"
        )

    # -- checks --

    def new_id(self) -> int:
        """An id that no sequence has had."""
        return next(self._ids)

    def check_tokens(self, tokens: Iterable[int]) -> list[int]:
        """The tokens as a list of ids that are in the vocabulary."""
        return checked_tokens(tokens, self.spec.n_vocab, self.images)

    def image_tokens(self, image: Pixels) -> list[int]:
        """The tokens of an image."""
        if self.images is None:
            raise InvalidRequest(f"this model sees no images; {REMEDY}")
        return self.images.tokens(image)

    def alive(self) -> None:
        """Raise unless the engine is open."""
        if self.closed:
            raise InvalidRequest("the model is closed; load it again")

    def _in_step(self) -> bool:
        """Whether this thread is in the middle of a step, in a callback say."""
        if not self.lock.acquire(blocking=False):
            return False
        try:
            return self.depth > 0
        finally:
            self.lock.release()

    def close(self) -> None:
        """Cancel everything and free the backend."""
        self.worker.close(wait=not self._in_step())
        with self.lock:
            if not self.closed:
                self.scheduler.cancel_all()
                self.closed = True
                self.orphans.clear()
                self.backend.close()
                if self.images is not None:
                    self.images.close()
