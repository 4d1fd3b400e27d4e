"""A request: a decoder that the scheduler runs until its output has ended."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from stretto.engine.decoders.base import Decoder
from stretto.engine.limits import CURRENT_SHARE
from stretto.engine.metrics import Metrics
from stretto.engine.output import Ending
from stretto.engine.track import Source, Track
from stretto.engine.types import Approximate, FinishReason, PromptStep
from stretto.errors import Cancelled, InvalidRequest

D = TypeVar("D", bound=Decoder)

_numbers = count()


class Changes:
    """Whether a request has ended or was abandoned since the scheduler last looked."""

    def __init__(self) -> None:
        self.pending = False


class Request(Generic[D]):
    """One piece of work from its arrival to its end.

    `siblings` are requests for the same prompt (the others of its `n`): `start_sibling` starts each from a
    fork when the prompt has been computed.
    """

    def __init__(
        self,
        decoder: D,
        metrics: Metrics,
        *,
        priority: int = 0,
        timeout: float | None = None,
        urgent: bool = False,
    ) -> None:
        self.decoder = decoder
        self.output = decoder.output
        self.number = decoder.number = next(_numbers)  # the order of arrival
        self.call = self.number  # the same for all requests of a call, once they are queued
        self.order = (-float("inf") if urgent else -priority, self.number)  # in the queue
        self.share = CURRENT_SHARE.get()
        self.urgent = urgent  # it goes first and counts for no limit: a caller computes a sequence
        self.deadline = None if timeout is None else time.monotonic() + timeout
        self.error: BaseException | None = None
        self.finished = False  # nothing more will come
        self.abandoned = False  # cancelled from elsewhere; the next step ends it
        self.queued = False  # the engine has taken it on
        self.single_steps = False  # its reader steps the engine, and waits for each token
        self.prompt_steps: deque[PromptStep] | None = None  # those not taken, if the reader wants them
        self._prompt_step: PromptStep | None = None  # the last one
        self.changes = Changes()  # the scheduler's, once it is queued
        self.siblings: list[Request[Any]] = []
        self.start_sibling: Callable[[Request[Any], Request[Any]], None] | None = None
        self._metrics = metrics
        self._advancing = False

    @property
    def n_texts(self) -> int:
        """How many running requests it counts for: itself and the siblings that it will start."""
        return 0 if self.urgent else 1 + len(self.siblings)

    @property
    def sources(self) -> Sequence[Source]:
        """The sources that are computed for it."""
        return self.decoder.sources

    @property
    def n_pending(self) -> int:
        """How many tokens have to be computed before it can go on."""
        return sum([source.n_pending for source in self.decoder.sources])

    @property
    def is_expired(self) -> bool:
        """Whether its time is over."""
        return self.deadline is not None and time.monotonic() >= self.deadline

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why it ended, None while it runs or if it failed."""
        return self.output.ending.reason if self.output.ending is not None else None

    @property
    def stop_reason(self) -> str | int | None:
        """What stopped it."""
        return self.output.ending.why if self.output.ending is not None else None

    def set_notify(self, notify: Callable[[], None]) -> None:
        """Have `notify` called whenever something new has come."""
        self.output.notify = notify

    def note_prompt(self, begun: float) -> None:
        """Note how much of the prompt has been computed after a step, which began then, for the reader."""
        last, steps, track = self._prompt_step, self.prompt_steps, self.sources[0].track
        total, n_cached = track.request_prompt
        if steps is None or not track.n_placed or (last is not None and last.processed == total):
            return
        now = time.monotonic()
        if last is None:
            steps.append(PromptStep(total, n_cached, n_cached, begun))
        self._prompt_step = PromptStep(total, n_cached, min(track.n_placed, total), now)
        steps.append(self._prompt_step)
        if self.output.notify is not None:
            self.output.notify()

    def spawn(self) -> list[Request[Any]]:
        """Start the siblings: the prompt has been computed, and each gets a fork of it."""
        siblings, self.siblings = self.siblings, []
        for sibling in siblings:
            assert self.start_sibling is not None
            self.start_sibling(self, sibling)
        return siblings

    def advance(self, step: Callable[..., object], *arguments: object) -> object:
        """Take the next step, by which the decoder may end; return what it returns, None if it failed.

        An exception ends this request and no other.
        """
        self._advancing = True  # what ends it meanwhile leaves its tracks to us
        try:
            return step(*arguments)
        except Exception as error:
            self._advancing = False
            self.fail(error)
            return None
        except BaseException:
            self._advancing = False
            self.interrupt()
            raise
        finally:
            self._advancing = False
            if self.output.ending is not None:
                self._close()

    def interrupt(self) -> None:
        """End after Ctrl-C in the middle of a token: whether it counts is not known."""
        self.fail(Cancelled("the request was interrupted in the middle of a token; ask again"))

    def check(self) -> None:
        """End it if its time is over or it was abandoned."""
        if self.abandoned or any(source.track.unwanted for source in self.sources):
            self.cancel()
        elif self.is_expired:
            self.finish("timeout")

    def abandon(self) -> None:
        """Have the next step end it; may be called from any thread and from finalizers."""
        self.abandoned = True
        self.changes.pending = True

    def finish(self, reason: FinishReason, why: str | int | None = None) -> None:
        """End it from outside; its output so far stays."""
        if not self.finished and self.output.ending is None:
            self.decoder.end_early(Ending(reason, why))
            if not self._advancing:
                self._close()

    def cancel(self) -> None:
        """End it because its result is not wanted any more."""
        self.finish("cancelled")

    def fail(self, error: BaseException) -> None:
        """End it with an exception, which its caller gets."""
        if not self.finished:
            self.error = error
            self._metrics.failed += self.queued
            self._close()

    def result(self) -> Any:
        """What came of it, once it has finished; raises if it failed."""
        if self.error is not None:
            raise self.error
        if self.output.ending is None:
            raise InvalidRequest("the request has not finished; iterate the stream to its end first")
        return self.decoder.result()

    def _close(self) -> None:
        if self.finished:
            return
        self.finished = self.changes.pending = True
        ending = self.output.ending
        if self.queued and ending is not None and self.error is None:
            finished = self._metrics.finished
            finished[ending.reason] = finished.get(ending.reason, 0) + 1
            self.output.note_end()
        self.decoder.close()
        siblings, self.siblings = self.siblings, []
        for sibling in siblings:  # they cannot start any more
            if self.error is not None:
                sibling.fail(self.error)
            elif ending is not None:
                sibling.finish(ending.reason, ending.why)
        if self.output.notify is not None:
            self.output.notify()


AnyRequest = Request[Any]


# How far the requests of a call are, for a list of what runs. Reading needs no lock.

ProgressState = Literal["waiting", "prompt", "running"]


class Progress(NamedTuple):
    """The state, tokens counted, and the ids of the sequences.

    A call is "waiting" while it has no cells (yet, or again), then its "prompt" is computed, then it is
    "running": tokens come.
    """

    state: ProgressState
    prompt_tokens: int = 0
    tokens: int = 0
    cached_tokens: int = 0
    sequences: tuple[int, ...] = ()


def measure_progress(requests: Sequence[Request[Any]], firsts: Sequence[Request[Any]]) -> Progress:
    """How far these requests are, of which the first of each prompt stand for it."""
    running = [request for request in requests if not request.finished]
    tracks = [source.track for request in running for source in request.sources]
    prompts = [request.sources[0].track.request_prompt for request in firsts if request.sources]
    state: ProgressState = "waiting"
    if any(track.n_placed for track in tracks):
        state = "running" if any(request.output.has_tokens for request in running) else "prompt"
    return Progress(
        state=state,
        prompt_tokens=sum(n for n, _ in prompts),
        tokens=sum(request.output.n_noted for request in requests),
        cached_tokens=sum(n_cached for _, n_cached in prompts),
        sequences=tuple(track.id for track in tracks),
    )


NEAR_TOKENS = 12  # shown on either side of the place where a prompt leaves a cached one


class Difference(NamedTuple):
    """Where a prompt leaves the nearest cached one of its salt: its own tokens on either side."""

    token: int
    of: int
    before: tuple[int, ...]
    after: tuple[int, ...]

    @classmethod
    def of_track(cls, track: Track) -> Difference | None:
        """That of a request's track; None if it goes on where the cached one ends, or shares too little."""
        at, n = track.differs_at, track.n_prompt
        if at is None or at >= n:
            return None
        tokens = track.tokens[max(0, at - NEAR_TOKENS) : min(at + NEAR_TOKENS, n)]
        n_before = min(at, NEAR_TOKENS)
        return cls(at, n, tuple(map(int, tokens[:n_before])), tuple(map(int, tokens[n_before:])))


class Summary(NamedTuple):
    """What a call took so far: tokens as results count them, seconds, and why each text ended, if it has.

    A text that failed has the reason "error". Seconds are those of the first one that came so far.
    """

    prompt_tokens: int
    cached_tokens: int
    tokens: int
    queued: float | None
    first_token: float | None
    reasons: tuple[str | None, ...]
    differences: tuple[Difference, ...] = ()
    edit_mode: Approximate | None = None  # of prompts that were made from edited cells


def summarize_requests(requests: Sequence[Request[Any]], firsts: Sequence[Request[Any]]) -> Summary:
    """The summary of these requests, of which the first of each prompt stand for it."""
    admitted = [request for request in firsts if request.output.n_prompt and request.sources]
    outputs = [request.output for request in requests]
    queued = [seconds for output in outputs if (seconds := output.queued_seconds) is not None]
    first = [seconds for output in outputs if (seconds := output.first_seconds) is not None]
    return Summary(
        prompt_tokens=sum(request.output.n_prompt for request in admitted),
        cached_tokens=sum(request.sources[0].track.request_prompt[1] for request in admitted),
        tokens=sum(output.n_tokens for output in outputs),
        queued=min(queued, default=None),
        first_token=min(first, default=None),
        reasons=tuple("error" if one.error is not None else one.finish_reason for one in requests),
        differences=tuple(found for one in admitted if (found := Difference.of_track(one.sources[0].track))),
        edit_mode=next(filter(None, (one.sources[0].track.used_edit for one in admitted)), None),
    )
