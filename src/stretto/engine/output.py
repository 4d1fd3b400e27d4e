"""From the tokens of a decoder to what the caller reads: text, stop strings, events, times, the result."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from copy import copy
from typing import Generic, NamedTuple, TypeVar

from stretto.engine.metrics import Metrics
from stretto.engine.params import RequestParams
from stretto.engine.types import FinishReason, Logprob, Timings, Token
from stretto.text.detokenizer import Detokenizer
from stretto.text.reasoning import Piece, Reasoning
from stretto.text.stops import StopMatcher

# The reasoning of one text, told apart from its answer while tokens come.


class Thoughts:
    """The reasoning so far: its `text`, its tokens, and where the answer starts among all tokens.

    `push` returns a token's part of the answer and leaves its part of the reasoning in `fresh`; `inside` says
    whether the token belongs to the reasoning or to the markers around it.
    """

    def __init__(self, reasoning: Reasoning, prompt: Sequence[int]) -> None:
        self._splitter = reasoning.splitter(prompt)
        self._reasoning = reasoning
        self._texts: list[str] = []
        self._n_pushed = 0
        self.n_tokens = 0
        self.answer_start = 0
        self.fresh = ""
        self.inside = False

    @property
    def text(self) -> str:
        """The reasoning."""
        return "".join(self._texts)

    def push(self, token: int, detokenizer: Detokenizer) -> str:
        """Add a token; return what of its text is part of the answer."""
        splitter = self._splitter
        before = splitter.shows
        answer = self._sort(splitter.push(self._reasoning.spell(token, detokenizer)))
        after = splitter.shows
        self._n_pushed += 1
        self.inside = not answer and not {before, after}.isdisjoint(("reasoning", "nothing"))
        self.n_tokens += self.inside
        if "reasoning" in (before, after):
            self.answer_start = self._n_pushed
        return answer

    def flush(self, text: str) -> str:
        """Add the last text, and return all of the answer that was held back."""
        return self._sort([*self._splitter.push(text), *self._splitter.flush()])

    def begin_here(self) -> None:
        """Count from here on; an answer that has started starts at a negative place."""
        self.answer_start -= self._n_pushed
        self._texts, self._n_pushed, self.n_tokens, self.fresh = [], 0, 0, ""

    def take(self) -> str:
        """The reasoning that has not been given out."""
        fresh, self.fresh = self.fresh, ""
        return fresh

    def fork(self) -> Thoughts:
        """An independent copy with the same state."""
        twin = copy(self)
        twin._splitter, twin._texts = self._splitter.fork(), list(self._texts)
        return twin

    def _sort(self, pieces: list[Piece]) -> str:
        """Keep the reasoning, return the answer."""
        if not pieces:
            return ""
        new = "".join(text for text, is_reasoning in pieces if is_reasoning)
        if new:
            self.fresh += new
            self._texts.append(new)
        return "".join(text for text, is_reasoning in pieces if not is_reasoning)


Event = TypeVar("Event")


CONTEXT = "context"  # the reason of an end by length where the context was full before `max_tokens`


class Ending(NamedTuple):
    """Why a request ended."""

    reason: FinishReason
    why: str | int | None = None


class Output(Generic[Event]):
    """The events of a request that were not taken yet, its ending (None while it runs), and its times."""

    def __init__(self, metrics: Metrics) -> None:
        self.events: deque[Event] = deque()
        self.ending: Ending | None = None
        self.notify: Callable[[], None] | None = None  # called for every event, and at the end
        self.n_noted = 0  # tokens so far, or steps that have several
        self.n_prompt = 0  # tokens of its prompt, once it was admitted
        self.is_read_at_end = False  # nobody looks at its events before
        self._metrics = metrics
        self._started = time.monotonic()
        self._admitted: float | None = None
        self._first: float | None = None
        self._last = self._started

    def end(self, ending: Ending) -> None:
        """Say that nothing more will come, and why."""
        if self.ending is None:
            self.ending = ending

    @property
    def has_tokens(self) -> bool:
        """Whether there is anything to return."""
        return self._first is not None

    @property
    def n_tokens(self) -> int:
        """How many tokens there are so far, as a result counts them."""
        return self.n_noted

    @property
    def queued_seconds(self) -> float | None:
        """How long it was in the queue; None while it is."""
        return None if self._admitted is None else self._admitted - self._started

    @property
    def first_seconds(self) -> float | None:
        """From the request to its first token; None before that."""
        return None if self._first is None else self._first - self._started

    def note_token(self) -> None:
        """Note the time of a token."""
        now = time.monotonic()
        self.n_noted += 1
        if self._first is None:
            self._first = now
            self._metrics.first_token.add(now - self._started)
        else:
            self._metrics.between_tokens.add(now - self._last)
        self._last = now

    def note_admission(self, n_prompt: int) -> None:
        """Note that it leaves the queue with a prompt of so many tokens; again after a preemption."""
        if self._admitted is None:
            self._admitted = time.monotonic()
            self._metrics.queue.add(self._admitted - self._started)
            self._metrics.prompt_length.add(n_prompt)
            self.n_prompt = n_prompt

    def note_end(self) -> None:
        """Note that it has ended."""
        metrics = self._metrics
        metrics.total.add(time.monotonic() - self._started)
        metrics.text_length.add(self.n_noted)
        if self._first is not None and self._admitted is not None:
            metrics.prefill.add(self._first - self._admitted)
            metrics.decode.add(self._last - self._first)

    def timings(self, n_tokens: int) -> Timings:
        """Times so far."""
        first = self._started if self._first is None else self._first
        return Timings(first - self._started, self._last - first, max(0, n_tokens - 1))


class TextOutput(Output[Token]):
    """One text: detokenized, its reasoning told apart, cut at stop strings, given out token by token."""

    def __init__(
        self,
        metrics: Metrics,
        params: RequestParams,
        detokenizer: Detokenizer,
        thoughts: Thoughts | None = None,
    ) -> None:
        super().__init__(metrics)
        self.tokens: list[int] = []
        self.logprobs: list[Token] = []
        self.score = 0.0  # the sum of log-probabilities, where they are measured
        self.n_sampled = 0
        self.detokenizer = detokenizer
        self.thoughts = thoughts  # told apart from the text, if there may be any
        self.matcher = StopMatcher(params.stop)
        self.has_stops = bool(params.stop or params.stop_functions)
        self._params = params
        self._texts: list[str] = []

    @property
    def can_wait(self) -> bool:
        """Whether tokens may be given out later: nobody looks, and only end tokens end the text."""
        decides = self.has_stops or self._params.repeat_guard
        return self.is_read_at_end and not decides and self._params.callback is None

    @property
    def _is_unwatched(self) -> bool:
        """Whether nobody ever sees its events: the result is made of ids and text."""
        is_asked = self._params.callback or self._params.logprobs or self.thoughts
        return self.is_read_at_end and not is_asked

    @property
    def n_tokens(self) -> int:
        """How many tokens the text has, without an end token."""
        return len(self.tokens)

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._texts)

    @text.setter
    def text(self, text: str) -> None:
        self._texts = [text]

    @property
    def mean_logprob(self) -> float | None:
        """The mean log-probability of the sampled tokens, where it was asked for."""
        asked = self._params.scored or self._params.logprobs
        return self.score / self.n_sampled if asked and self.n_sampled else None

    def push(self, token: int) -> str:
        """The text of a token that is part of the answer."""
        if self.thoughts is None:
            return self.detokenizer.push(token)
        return self.thoughts.push(token, self.detokenizer)

    def check(self, text: str) -> tuple[str, Ending | None]:
        """Look for stops in new text; return what of it may be shown, and why the text ends here if so."""
        if len(self.tokens) < self._params.min_tokens:
            return self.matcher.pass_by(text), None
        if self._params.stop:
            text = self.matcher.push(text)
            if self.matcher.matched is not None:
                stop = self.matcher.matched
                return text + stop if self._params.include_stop else text, Ending("stop", stop)
        if self._params.stop_functions:
            whole = self.text + text
            if any(stop(whole) for stop in self._params.stop_functions):
                return text, Ending("stop", "stop function")
        return text, None

    def emit(
        self,
        token: int,
        text: str,
        logprob: float | None = None,
        top: tuple[Logprob, ...] = (),
        ending: Ending | None = None,
    ) -> None:
        """Give out a token, and the ending with the last one."""
        text = text if ending is None else text + self._flush()
        reason, thoughts = None if ending is None else ending.reason, self.thoughts
        self._texts.append(text)
        if self._is_unwatched:
            if ending is not None:
                self.end(ending)
            return
        if thoughts is None:
            event = Token(token, text, logprob, top, reason)
        else:
            is_reasoning = thoughts.inside
            if thought := thoughts.take():
                if text:
                    self._give(Token(None, thought, is_reasoning=True))
                else:
                    text, is_reasoning = thought, True
            event = Token(token, text, logprob, top, reason, is_reasoning)
        if self._params.logprobs:
            self.logprobs.append(event)
        go_on = self._give(event)
        if ending is not None:
            self.end(ending)
        elif not go_on and self.ending is None:
            self.end_early(Ending("stop", "callback"))

    def _give(self, event: Token) -> bool:
        """Give out an event; False if the callback asks for an end."""
        self.events.append(event)
        if self.notify is not None:
            self.notify()
        callback = self._params.callback
        return callback is None or callback(event) is not False

    def end_early(self, ending: Ending) -> None:
        """End without another token; text that was held back is given out."""
        if self.ending is None:
            text = self._flush()
            self._texts.append(text)
            if self.thoughts is not None and (thought := self.thoughts.take()):
                self.events.append(Token(None, thought, is_reasoning=True))
            self.events.append(Token(None, text, finish_reason=ending.reason))
            self.end(ending)

    def _flush(self) -> str:
        """Text that was held back and will not become a stop string."""
        if self.matcher.matched is not None:
            return ""
        text = self.detokenizer.flush()
        if self.thoughts is not None:
            text = self.thoughts.flush(text)
        return self.matcher.push(text) + self.matcher.flush()
