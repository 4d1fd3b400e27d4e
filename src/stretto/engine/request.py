"""A request: a sequence that samples itself until something stops it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING

import numpy as np

from stretto.engine.ahead import run_ahead
from stretto.engine.params import RequestParams
from stretto.engine.sequence import Row, Sequence
from stretto.engine.types import FinishReason, Logprob, Result, Timings, Token, Usage
from stretto.errors import CacheFull, Cancelled, ContextOverflow, InvalidRequest
from stretto.sampling.rng import RandomStream
from stretto.sampling.transforms import log_softmax
from stretto.text.stops import StopMatcher

if TYPE_CHECKING:
    from stretto.engine.engine import Engine


FUSED_TOKENS = 32  # at a time: long enough to hide Python, short enough for a stream
_numbers = count()


class Request:
    """One generation from prompt to result. `events` holds the tokens nobody has taken yet.

    `siblings` are requests for the same prompt (the others of its `n`): they start as forks when the prompt
    has been computed. `notify` is called whenever something new has come.
    """

    can_wait = True  # its cells can be given up, and be computed again from its tokens
    sequence_type = Sequence
    complete = False  # with the token at hand its grammar allows no more

    def __init__(
        self,
        engine: Engine,
        prompt: list[int],
        params: RequestParams,
        index: int = 0,
        seed: int | None = None,
        sequence: Sequence | None = None,
    ) -> None:
        if not prompt:
            raise InvalidRequest("the prompt is empty; give at least one token")
        if len(prompt) >= engine.context_length:
            raise ContextOverflow(
                f"the prompt has {len(prompt)} tokens and the context {engine.context_length}; "
                "shorten it, leaving room for an answer"
            )
        if params.overflow == "shift":
            engine.backend.capabilities.require("shift", engine.backend.name)
            if params.keep > engine.context_length - 2:
                raise InvalidRequest(
                    f"keep is {params.keep}; in a context of {engine.context_length} at most "
                    f"{engine.context_length - 2} tokens can be kept"
                )
        self.params = params
        self.number = next(_numbers)  # the order of arrival
        if sequence is None:
            random = RandomStream(seed if seed is not None else params.seed, index)
            sequence = self.sequence_type(engine, prompt, random)
        self.sequence = sequence
        self.sequence.running = True
        self.sequences = [self.sequence]  # what is computed for it
        self.siblings: list[Request] = []
        self.notify: Callable[[], None] | None = None
        self.queued = False  # the engine has taken it on
        self.unwanted = False  # cancelled from elsewhere; the next step ends it
        self.tokens: list[int] = []
        self.events: deque[Token] = deque()
        self.finish_reason: FinishReason | None = None
        self.stop_reason: str | int | None = None
        self.error: BaseException | None = None
        self.busy = False
        self._engine = engine
        self._end_ids = params.stop_tokens | (frozenset() if params.ignore_eos else engine.tokenizer.end_ids)
        self._n_prompt = len(prompt)
        self._undisturbed = not (params.stop or params.stop_functions or params.callback)
        self._enough = 0  # tokens after which the limits have to be looked at
        self._matcher = StopMatcher(params.stop)
        self._detokenizer = engine.tokenizer.detokenizer(after=prompt[-1])
        self._text: list[str] = []
        self._logprobs: list[Token] = []
        self.finished = False  # nothing more will come
        self._started = time.monotonic()
        self.deadline = None if params.timeout is None else self._started + params.timeout
        self._first: float | None = None
        self._last = self._started
        self._visited = 0, 0.0  # so many tokens there were when the native loop was last entered, and when
        self.n_sampled = 0
        self.score = 0.0  # the log-probability of its tokens together, where somebody asked for it

    @property
    def due(self) -> bool:
        """Whether its logits are there, its hooks have seen them, and no token has been taken yet."""
        if self.busy or self.finished:
            return False
        n_hooks = len(self.params.hooks)
        return all(sequence.ready and sequence.n_hooked >= n_hooks for sequence in self.sequences)

    @property
    def n_pending(self) -> int:
        """How many tokens have to be computed before it can go on."""
        return sum(sequence.n_pending for sequence in self.sequences)

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._text)

    @property
    def usage(self) -> Usage:
        """Tokens counted so far."""
        return Usage(self._n_prompt, len(self.tokens), self.sequence.n_cached)

    @property
    def timings(self) -> Timings:
        """Times taken so far."""
        first = self._started if self._first is None else self._first
        return Timings(first - self._started, self._last - first, max(0, len(self.tokens) - 1))

    # -- forward --

    def spawn(self) -> list[Request]:
        """Start the siblings: the prompt has been computed, and each gets a fork of it."""
        if not self.siblings:
            return self.siblings
        twins, self.siblings = self.siblings, []
        for twin in twins:
            fork = self.sequence.fork()
            fork.random = twin.sequence.random
            fork.running = True
            twin.sequence.close()
            twin.sequence = fork
            twin.sequences = [fork]
        return twins

    def look_up(self) -> None:
        """End it if it has waited too long, or nobody waits for it any more."""
        if self.busy:
            return  # in the middle of a token; the next step asks again
        if self.unwanted:
            self.cancel()
        elif self._timed_out():
            self.finish("timeout")

    def abandon(self) -> None:
        """Nobody wants it any more. This may be called from anywhere: the next step ends it."""
        self.unwanted = True
        self._engine.scheduler.stale = True

    def advance(self, fused: bool = False) -> None:
        """Sample the next token and see whether it is the last; `fused`: several, the same, in native code.

        What goes wrong here, in a callback say, ends this request and no other.
        """
        self.busy = True  # a callback may use the engine, and so step it
        try:
            if fused:
                self._advance_fused()
            else:
                self._advance()
        except Exception as error:
            self.fail(error)
        except BaseException:
            self.interrupted()
            raise
        finally:
            self.busy = False

    def interrupted(self) -> None:
        """Ctrl-C in the middle of a token: whether it counts is not known, so the request ends."""
        self.fail(Cancelled("the request was interrupted in the middle of a token; ask again"))

    def _advance(self) -> None:
        if self.deadline is not None and self._timed_out():
            self.finish("timeout")
            return
        self._take(self.sequence.logits)

    def _take(self, row: Row, guessed: int | None = None) -> bool:
        """Sample a token from a row of logits, and say whether it is the one that was guessed.

        A token that was guessed has its cell already.
        """
        params = self.params
        begun = time.perf_counter()
        token = self.sequence.choose(row, params.sampling)
        self._engine.metrics.sampling += time.perf_counter() - begun
        right = token == guessed
        if params.logprobs or params.scored:
            self._accept(token, *self._measure(token, row), placed=right)
        else:
            self._accept(token, None, (), placed=right)
        return right

    def _advance_fused(self) -> None:
        most = self.params.max_tokens
        left = FUSED_TOKENS if most is None else most - len(self.tokens)
        cells = min(self._engine.cells.n_free, self._engine.context_length - self.sequence.position)
        n = min(self._in_a_row(), left, cells)
        if n < 2 or self._timed_out():
            for hook in self.params.native_hooks:
                hook(self.sequence.logits, self.sequence.history)
            self._advance()
            return
        ahead = self._run_ahead(n, last=most is not None and n == left)
        self._engine.metrics.decoded_tokens += len(ahead)
        if self._undisturbed:
            self._accept_before(ahead)
            ahead = ahead[-1:]
        for i, token in enumerate(ahead, 1):
            self.note_end(i == len(ahead))
            self._accept(token, None, (), placed=True)
            if self.finished:
                return
        self.sequence.settle()

    def _in_a_row(self) -> int:
        """How many tokens to run ahead: those that fit into `max_ahead_ms`, by what the last ones took."""
        scheduler = self._engine.scheduler
        most = scheduler.limits.max_ahead_ms
        if most is None:
            return FUSED_TOKENS
        n, now = len(self.tokens), time.perf_counter()
        before, since = self._visited
        self._visited = n, now
        if n == before or len(scheduler.running) > 1 or scheduler.waiting:
            return 1  # others have a turn after each token
        return max(1, min(FUSED_TOKENS, int(1e-3 * most * (n - before) / (now - since))))

    def _run_ahead(self, n: int, last: bool) -> list[int]:
        """Up to n tokens from native code; after the last there will be no more."""
        params = self.params
        return run_ahead(self.sequence, n, params.sampling, self._end_ids, last, params.native_hooks)

    def note_end(self, last: bool) -> None:
        """The token that is accepted next is the last of those at hand, or not."""

    def _accept(
        self, token: int, logprob: float | None, top: tuple[Logprob, ...], placed: bool = False
    ) -> None:
        self.note_token()
        text = ""
        reason: FinishReason | None = None
        why: str | int | None = None
        if token in self._end_ids:
            reason, why = "stop", token
        else:
            self.tokens.append(token)
            text = self._detokenizer.push(token)
            if self.params.stop:
                text = self._matcher.push(text)
            if self._matcher.matched is not None:
                reason, why = "stop", self._matcher.matched
            elif self.params.stop_functions and any(
                stop(self.text + text) for stop in self.params.stop_functions
            ):
                reason, why = "stop", "stop function"
            elif self.complete:
                reason, why = "stop", "grammar"
            elif len(self.tokens) >= self._enough and self._exhausted():
                reason = "length"
            else:
                self.sequence.adopt(token, placed)
        if reason is not None:
            text += self._held()
        go_on = self._emit(Token(token, text, logprob, top, reason))
        if self.finished:  # the callback has cancelled it, or closed the model
            return
        if reason is not None:
            self._end(reason, why)
        elif not go_on:
            self.finish("stop", "callback")

    def _accept_before(self, ahead: list[int]) -> None:
        """All but the last of some tokens, none of which can end it and after which nobody is asked."""
        before = ahead[:-1]
        if not before:
            return
        self.note_token(len(before))
        push, texts, events = self._detokenizer.push, self._text, self.events
        for token in before:
            text = push(token)
            texts.append(text)
            events.append(Token(token, text))
        self.tokens += before
        self.sequence.adopt_placed(before)

    def note_token(self, n: int = 1) -> None:
        """A token has come, or n together: that is when."""
        now, metrics = time.monotonic(), self._engine.metrics
        if self._first is None:
            self._first = now
            metrics.first_token.add(now - self._started)
        else:
            metrics.between_tokens.add(now - self._last)
        if n > 1:
            metrics.between_tokens.add(0.0, n - 1)
        self._last = now
        self.n_sampled += n

    def _exhausted(self) -> bool:
        """Whether there may be no more tokens; if not, `_enough` says when to ask again."""
        n, most = len(self.tokens), self.params.max_tokens
        if most is not None and n >= most:
            return True
        room = self._engine.context_length - self.sequence.position
        if room <= 0:
            if self.params.overflow == "error":
                return True
            try:
                self._make_room()
            except CacheFull:  # others share its cells, and there are none to copy them to
                return True
            room = self._engine.context_length - self.sequence.position
        self._enough = n + room if most is None else min(most, n + room)
        return False

    def _make_room(self) -> None:
        """The context is full: forget the older half of what is not to be kept, and close the gap."""
        keep = self.params.keep
        half = (self.sequence.position - keep + 1) // 2
        start, stop = (self.sequence.uncut(position) for position in (keep, keep + half))
        self.sequence.remove(start, stop, close=True)

    def _timed_out(self) -> bool:
        return self.deadline is not None and time.monotonic() >= self.deadline

    def _measure(self, token: int, row: Row) -> tuple[float | None, tuple[Logprob, ...]]:
        logs = log_softmax(row)
        self.score += float(logs[token])
        if not self.params.logprobs:
            return None, ()
        n = min(self.params.logprobs, len(logs))
        best = np.argpartition(-logs, n - 1)[:n]
        best = best[np.lexsort((best, -logs[best]))]
        return float(logs[token]), tuple(Logprob(int(i), float(logs[i])) for i in best)

    def _emit(self, event: Token) -> bool:
        """Hand out an event; False if the callback wants no more."""
        self._text.append(event.text)
        if self.params.logprobs and event.id is not None:
            self._logprobs.append(event)
        self.events.append(event)
        if self.notify is not None:
            self.notify()
        return self.params.callback is None or self.params.callback(event) is not False

    def _held(self) -> str:
        """Text that was held back and now will not become a stop string."""
        if self._matcher.matched is not None:
            return ""
        return self._matcher.push(self._detokenizer.flush()) + self._matcher.flush()

    # -- the end --

    def finish(self, reason: FinishReason, why: str | int | None = None) -> None:
        """End it from outside; what is there stays."""
        if not self.finished:
            text = self._held()
            self._text.append(text)
            self.events.append(Token(None, text, finish_reason=reason))
            self._end(reason, why)

    def _end(self, reason: FinishReason, why: str | int | None) -> None:
        self.finish_reason, self.stop_reason = reason, why
        self.finished = self._engine.scheduler.stale = True
        if self.queued:
            finished = self._engine.metrics.finished
            finished[reason] = finished.get(reason, 0) + 1
        for sequence in self.sequences:
            sequence.close()
        for twin in self.siblings:  # they cannot start any more
            twin.finish(reason, why)
        if self.notify is not None:
            self.notify()

    def fail(self, error: BaseException) -> None:
        """End it with an exception, which whoever waits for it gets."""
        if not self.finished:
            self.error = error
            self.finished = self._engine.scheduler.stale = True
            self._engine.metrics.failed += self.queued
            for sequence in self.sequences:
                sequence.close()
            for twin in self.siblings:
                twin.fail(error)
            if self.notify is not None:
                self.notify()

    def cancel(self) -> None:
        """End it because nobody wants it any more."""
        self.finish("cancelled")

    def result(self) -> Result:
        """What came of it, once it has finished."""
        if self.error is not None:
            raise self.error
        if self.finish_reason is None:
            raise InvalidRequest("the generation has not finished; iterate the stream to its end first")
        return Result(
            text=self.text,
            tokens=list(self.tokens),
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
            usage=self.usage,
            timings=self.timings,
            seed=self.sequence.random.seed,
            logprob=self.score / self.n_sampled if self.params.scored and self.n_sampled else None,
            logprobs=list(self._logprobs) if self.params.logprobs else None,
        )
