"""Which tokens go into the next forward pass.

Requests wait in order of priority, then of arrival. One is admitted when its prompt fits into the cells that
are free or parked; from then on it is in every pass. Sequences that decode get their token first; prompts
share what is left of the pass, the oldest first, in pieces small enough that nobody who decodes waits for
longer than `max_step_ms`. When the cells run out, the youngest request is parked: it goes back to the queue
and later goes on from what is left of its cells.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stretto.cache.radix import common
from stretto.engine.request import Request
from stretto.engine.sequence import Sequence
from stretto.errors import CacheFull, QueueFull
from stretto.sampling.params import check_integer, check_number

if TYPE_CHECKING:
    from stretto.engine.engine import Engine

MIN_SHARED = 32  # tokens: a common beginning at least this long is worth waiting for
GROWTH = 16  # cells that every running request should find free

Work = tuple[Sequence, int]  # so many pending tokens of it


@dataclass(frozen=True)
class Limits:
    """How much an engine takes on.

    - `max_running`: requests in one forward pass
    - `max_queue`: requests that wait; a call that finds so many is refused with `QueueFull`
    - `max_tokens_per_step`: tokens in a forward pass, at most
    - `max_step_ms`: how long a pass may take while somebody decodes, about; prompts are cut to fit
    - `max_ahead_ms`: with `loop="fused"`, how long tokens may be kept to be handed out together, about;
      None: as long as 32 of them take
    """

    max_running: int = 64
    max_queue: int = 1024
    max_tokens_per_step: int = 512
    max_step_ms: float = 45.0
    max_ahead_ms: float | None = None

    def __post_init__(self) -> None:
        check_integer("max_running", self.max_running, 1, 1 << 16)
        check_integer("max_queue", self.max_queue, 0, 1 << 24)
        check_integer("max_tokens_per_step", self.max_tokens_per_step, 1, 1 << 16)
        check_number("max_step_ms", self.max_step_ms, 0.0, 1e9, open_low=True)
        if self.max_ahead_ms is not None:
            check_number("max_ahead_ms", self.max_ahead_ms, 0.0, 1e9, open_low=True)


class Pace:
    """What a token of a prompt costs here, learned from the steps so far."""

    FEWEST = 8  # tokens of a piece; fewer are not worth a pass

    def __init__(self) -> None:
        self._seconds = 0.0  # for one token; 0: not known yet

    def learn(self, n_tokens: int, seconds: float) -> None:
        """A pass over so many tokens took so long."""
        if n_tokens >= self.FEWEST:
            now = seconds / n_tokens
            self._seconds = now if not self._seconds else 0.5 * (self._seconds + now)

    def tokens_in(self, milliseconds: float) -> int:
        """How many tokens of prompts fit into such a time."""
        if not self._seconds:
            return 8 * self.FEWEST
        return max(self.FEWEST, int(1e-3 * milliseconds / self._seconds))


class Scheduler:
    """The queue of waiting requests and the list of running ones, oldest first."""

    def __init__(self, engine: Engine, limits: Limits) -> None:
        self._engine = engine
        self.limits = limits
        self.pace = Pace()
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.stale = False  # somebody has ended or gone away since the last sweep
        self.alone = True  # nobody can go on but those who wait for images
        self._turn = 0  # whose token comes first, when a pass has no room for all

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not self.running and not self.waiting

    @property
    def awake(self) -> list[Request]:
        """Running requests that can go on: none of those whose hook or callback is stepping us."""
        return [request for request in self.running if not request.busy]

    @property
    def asleep(self) -> bool:
        """Whether no step could move anything on."""
        return not self.waiting and not self.awake

    def add(self, requests: tuple[Request, ...]) -> None:
        """Put the requests of a call into the queue, behind those of their priority."""
        if len(self.waiting) >= self.limits.max_queue:
            self.sweep()
        if len(self.waiting) >= self.limits.max_queue and not self.idle:
            self._engine.metrics.refused += 1
            raise QueueFull(
                f"{len(self.waiting)} requests wait already, and max_queue is {self.limits.max_queue}; "
                "try again later"
            )
        for request in requests:
            insort(self.waiting, request, key=_order)
            for one in (request, *request.siblings):
                one.queued = True
                self._engine.metrics.added += 1

    def schedule(self) -> list[Work]:
        """The sequences of the next pass, and how many pending tokens of each."""
        if self.stale or self.waiting:
            self.sweep()
            self._admit()
        decoding, prompts, n_sequences, n_tokens = [], [], 0, 0
        encoding = self._engine.encoding
        encoding.begin()
        for request in self.running:
            if request.busy:
                continue  # its hook or callback is stepping us
            if request.deadline is not None:
                request.look_up()
                if request.finished:
                    continue
            n_sequences += len(request.sequences)
            first = request.sequences[0] if request.sequences else None
            for sequence in request.sequences:
                n = sequence.n_pending
                if n > 1 and first and sequence is not first and not self._engine.cells.count(sequence.id):
                    # A preempted hypothesis comes back: what it shares with the first is computed once.
                    if first.n_pending > 1:
                        continue
                    self._engine.share(first, sequence)
                    n = sequence.n_pending
                if not n and not sequence.ready:
                    sequence.prepare()  # an interrupted step has left it without logits
                    n = sequence.n_pending
                if sequence.pictured and n:
                    n = encoding.ready(sequence)
                    if not n:  # an image comes first, which is not encoded yet
                        n_sequences -= 1
                        continue
                if n == sequence.at_once:
                    decoding.append((sequence, n))
                    n_tokens += n
                elif n:
                    prompts.append((sequence, n))
        self.alone = not n_sequences
        room = self.limits.max_tokens_per_step - n_tokens
        if room < 0:
            return self._turns(decoding)
        if not prompts:
            return decoding
        work = decoding
        if len(prompts) < n_sequences:  # somebody decodes
            room = min(room, self.pace.tokens_in(self.limits.max_step_ms))
        for sequence, n in prompts:
            if room <= 0:
                break
            work.append((sequence, min(n, room)))
            room -= n
        return work

    def _turns(self, decoding: list[Work]) -> list[Work]:
        """Who decodes in a pass that has no room for all: those who have to wait come first in the next."""
        first = self._turn % len(decoding)
        chosen: list[Work] = []
        room = self.limits.max_tokens_per_step
        for work in decoding[first:] + decoding[:first]:
            if work[1] > room and chosen:
                break
            chosen.append(work)
            room -= work[1]
        self._turn = first + len(chosen)
        return chosen

    def ready(self) -> tuple[list[Request], list[Request]]:
        """Running requests all of whose logits are there, their siblings with them; and those with hooks."""
        found, hooked = [], []
        for request in self.running:  # siblings join it at the end
            if request.busy or request.finished:
                continue
            for sequence in request.sequences:
                if not sequence.ready:
                    break
            else:
                found.append(request)
                if request.params.hooks:
                    hooked.append(request)
                if request.siblings:
                    self.running += request.spawn()
        return found, hooked

    def make_room(self, error: CacheFull) -> bool:
        """Send the youngest request back to the queue, and say so; the last one left ends here.

        Guesses go first: then nobody has to wait.
        """
        awake = self.awake
        if any(sequence.lighten() for request in awake for sequence in request.sequences):
            return False
        # What was edited (overflow="shift") cannot be computed again: such a request goes last.
        youngest = max(
            awake,
            key=lambda r: (r.can_wait, all(sequence.exact for sequence in r.sequences), *_order(r)),
        )
        if len(awake) > 1 and youngest.can_wait:
            self.running.remove(youngest)
            for sequence in youngest.sequences:
                sequence.release()
            insort(self.waiting, youngest, key=_order)
            return True
        if youngest.tokens:
            youngest.finish("length", "cache full")
        else:
            youngest.fail(error)
        self.sweep()
        return False

    def sweep(self) -> None:
        """Let go of what has finished, was cancelled, or has waited for too long."""
        self.stale = False
        for request in self.running:
            request.look_up()
        for request in self.waiting:
            request.look_up()
        self.running = [request for request in self.running if not request.finished]
        self.waiting = [request for request in self.waiting if not request.finished]

    def cancel_all(self) -> None:
        """End every request."""
        for request in (*self.running, *self.waiting):
            request.cancel()
        self.running, self.waiting = [], []

    # -- admission --

    def _admit(self) -> None:
        for request in self.waiting[: 2 * self.limits.max_running]:  # however long the queue is
            if len(self.awake) >= self.limits.max_running:
                return
            if self._could_share_soon(request):
                continue  # those behind it need not wait with it
            if not self._fits(request):
                return
            self.waiting.remove(request)
            self.running.append(request)

    def _fits(self, request: Request) -> bool:
        """Whether the cells suffice for a request beside those that run. What it can share it takes."""
        bare = [sequence for sequence in request.sequences if not self._engine.cells.count(sequence.id)]
        for sequence in bare:
            self._engine.reuse(sequence)
        if not self.awake:
            return True  # it will never be better: if it does not fit now, that is an error
        cells = self._engine.cells
        growth = min(GROWTH, len(cells) // 64) * (len(self.running) + 1)
        wanted = growth + request.n_pending + sum(other.n_pending for other in self.running)
        if wanted <= cells.n_free or wanted <= self._engine.n_available():
            return True
        for sequence in bare:
            self._engine.unuse(sequence)
        return False

    def _could_share_soon(self, request: Request) -> bool:
        """Whether somebody is computing a beginning right now that the request could share."""
        if not self._engine.prefix_cache:
            return False
        computing = [other.sequence for other in self.running if other.sequence.n_pending > MIN_SHARED]
        mine = request.sequence.history[:-1] if computing else []
        return any(
            common(other.history, mine) >= len(other) - other.n_pending + MIN_SHARED for other in computing
        )


def _order(request: Request) -> tuple[int, int]:
    return -request.params.priority, request.number
