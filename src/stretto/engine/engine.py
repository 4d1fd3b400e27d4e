"""The engine: one step moves every running request forward by one forward pass.

    schedule → forward → sample → emit

One thread at a time steps it, under its lock; whoever waits for a token takes the lock and steps for all.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from itertools import count

import numpy as np
from numpy.typing import NDArray

from stretto.backends.base import Backend, Batch
from stretto.cache.cells import Cells
from stretto.engine.request import Request
from stretto.engine.scheduler import Scheduler
from stretto.engine.sequence import Sequence
from stretto.errors import CacheFull, InvalidRequest
from stretto.text.tokenizer import Tokenizer

Floats = NDArray[np.float32]


class Engine:
    """A backend, its cells, and the requests that run on them."""

    def __init__(
        self,
        backend: Backend,
        tokenizer: Tokenizer,
        chunk: int = 512,
        fingerprint: Callable[[], str] | None = None,
    ) -> None:
        self.backend = backend
        self.tokenizer = tokenizer
        self.fingerprint = fingerprint  # tells the model from others, for saved sequences
        self.spec = backend.spec
        self.cells = Cells(backend.n_cells)
        self.context_length = min(self.spec.context_length, backend.n_cells)
        self.chunk = chunk  # tokens in a forward pass, at most
        self.lock = threading.RLock()
        self.scheduler = Scheduler()
        self.closed = False
        self._ids = count()

    # -- requests --

    def add(self, request: Request) -> None:
        """Queue a request; it runs from the next step on."""
        self.alive()
        with self.lock:
            self.scheduler.add(request)

    def step(self) -> None:
        """Move all running requests forward by one forward pass."""
        with self.lock:
            self.alive()
            work = self.scheduler.schedule(self.cells.n_free, self.chunk)
            try:
                self.run(work)
            except CacheFull as error:
                self.scheduler.make_room(error)
                return
            ready = self.scheduler.ready()
            for request in ready:
                if request.params.fused and len(ready) == 1:
                    request.advance_fused()
                else:
                    request.advance()
            self.scheduler.sweep()

    # -- sequences --

    def compute(self, sequences: Iterable[Sequence]) -> None:
        """Compute all pending tokens of some sequences, together."""
        with self.lock:
            self.alive()
            while waiting := [sequence for sequence in sequences if sequence.n_pending]:
                room, work = self.chunk, []
                for sequence in waiting[:room]:
                    # Each gets at least one token, the first as much as there is room for.
                    n = min(sequence.n_pending, max(1, room - len(waiting)))
                    work.append((sequence, n))
                    room -= n
                self.run(work)

    def run(self, work: list[tuple[Sequence, int]]) -> None:
        """One forward pass over the next n pending tokens of each sequence."""
        if not work:
            return
        batch, last = Batch(), []
        for sequence, n in work:
            tokens, position, done = sequence.pending(n)
            last.append(done)
            batch.extend(tokens, position, (sequence.id,), logits=done)
        rows = iter(self.forward(batch))
        for (sequence, _), done in zip(work, last, strict=True):
            sequence.computed(next(rows) if done else None)

    def forward(self, batch: Batch) -> Floats:
        """Place a batch and run it: float32[n_wanted, n_vocab]. On failure nothing is changed."""
        with self.lock:
            self.alive()
            batch.check(self.spec.n_vocab, self.spec.n_embd, self.context_length)
            batch.place(self.cells)
            try:
                return self.backend.forward(batch)
            except BaseException:
                batch.unplace(self.cells)
                raise

    def shift(self, sequence: int, start: int, stop: int | None, delta: int) -> None:
        """Move a sequence's tokens to other positions, turning their K; shared cells are copied first."""
        with self.lock:
            self.backend.capabilities.require("shift", self.backend.name)
            old, new = self.cells.unshare(sequence, start, stop)
            if len(old):
                self.backend.copy_cells(old, new)
            moved = self.cells.shift(sequence, start, stop, delta)
            if len(moved):
                self.backend.turn_cells(moved, delta)

    # -- checks --

    def new_id(self) -> int:
        """An id that no sequence has had."""
        return next(self._ids)

    def check_tokens(self, tokens: Iterable[int]) -> list[int]:
        """The tokens as a list of ids that are in the vocabulary."""
        if isinstance(tokens, (str, bytes)) or not isinstance(tokens, Iterable):
            raise InvalidRequest(f"tokens must be a list of ids, not {tokens!r}")
        several = list(tokens)
        if not several or (
            set(map(type, several)) == {int} and 0 <= min(several) <= max(several) < self.spec.n_vocab
        ):
            return several
        found = []
        for token in several:
            if isinstance(token, bool) or not isinstance(token, (int, np.integer)):
                raise InvalidRequest(f"a token id must be an integer, not {token!r}")
            if not 0 <= token < self.spec.n_vocab:
                raise InvalidRequest(f"token {token} is not in the vocabulary (0 to {self.spec.n_vocab - 1})")
            found.append(int(token))
        return found

    def alive(self) -> None:
        """Raise unless the engine is open."""
        if self.closed:
            raise InvalidRequest("the model is closed; load it again")

    def close(self) -> None:
        """Cancel everything and free the backend."""
        with self.lock:
            if not self.closed:
                self.scheduler.cancel_all()
                self.closed = True
                self.backend.close()
