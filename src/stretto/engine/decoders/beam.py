"""Beam search: the most probable texts, found by keeping the best hypotheses and forking where they part.

Each hypothesis is a track. All run in the same passes as everything else; with a grammar each hypothesis has
its own state of it, and only allowed tokens are candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from stretto.backends.base import Row, fetch_rows
from stretto.engine.output import CONTEXT, Ending, TextOutput, Thoughts
from stretto.engine.params import RequestParams
from stretto.engine.runner import Runner
from stretto.engine.track import Source, Track
from stretto.engine.types import Result, Usage
from stretto.errors import InvalidRequest
from stretto.sampling.transforms import add_bias, log_softmax
from stretto.text.detokenizer import Detokenizer
from stretto.text.stops import RepeatGuard, StopMatcher

if TYPE_CHECKING:
    from stretto.structured import Constraint

Candidate = tuple[float, int, int]  # log-probability, index of the hypothesis, token


@dataclass
class Hypothesis:
    """An open text: its track, its tokens, and how probable they are."""

    track: Track
    detokenizer: Detokenizer
    matcher: StopMatcher
    guide: Constraint | None = None
    thoughts: Thoughts | None = None
    guard: RepeatGuard | None = None
    tokens: tuple[int, ...] = ()
    logprob: float = 0.0
    text: str = ""
    repeats: bool = False

    def fork(self, track: Track, logprob: float) -> Hypothesis:
        """The same text on another track, for one more token."""
        guide = None if self.guide is None else self.guide.fork()
        thoughts = None if self.thoughts is None else self.thoughts.fork()
        guard = None if self.guard is None else self.guard.fork()
        detokenizer, matcher = self.detokenizer.fork(), copy(self.matcher)
        return Hypothesis(
            track, detokenizer, matcher, guide, thoughts, guard, self.tokens, logprob, self.text
        )

    def push(self, token: int) -> None:
        """Take a token into the text."""
        self.tokens = (*self.tokens, token)
        detokenizer, thoughts = self.detokenizer, self.thoughts
        text = detokenizer.push(token) if thoughts is None else thoughts.push(token, detokenizer)
        self.text += self.matcher.push(text)

    def finished(self, score: float, ending: Ending) -> Finished:
        """The hypothesis if it ends here: with text that was held back for a marker or half a character."""
        text, thoughts = self.text, None if self.thoughts is None else self.thoughts.fork()
        if self.matcher.matched is None:
            matcher, rest = copy(self.matcher), self.detokenizer.fork().flush()
            rest = rest if thoughts is None else thoughts.flush(rest)
            text += matcher.push(rest) + matcher.flush()
        return Finished(score, self.tokens, text, ending, thoughts)


@dataclass(frozen=True)
class Finished:
    """A hypothesis that has come to its end."""

    score: float
    tokens: tuple[int, ...]
    text: str
    ending: Ending
    thoughts: Thoughts | None = None


@dataclass(frozen=True)
class BeamParams:
    """How many hypotheses are kept, and how length counts in their scores."""

    width: int
    length_penalty: float = 1.0


class BeamDecoder:
    """The open hypotheses of one search, the most probable first."""

    can_preempt = True
    reuses_prefix = True
    hidden = False
    number = 0

    def __init__(
        self,
        runner: Runner,
        track: Track,
        output: TextOutput,
        params: RequestParams,
        end_ids: frozenset[int],
        beam: BeamParams,
        guide: Constraint | None = None,
    ) -> None:
        self.output: TextOutput = output
        self.hooks = params.hooks
        self.finished: list[Finished] = []
        self._first = track
        self._n_prompt = len(track)
        self._runner = runner
        self._bias = params.sampling.logit_bias
        self._end_ids = end_ids
        self._width, self._penalty = beam.width, beam.length_penalty
        left = runner.context_length - len(track)
        self._most = left if params.max_tokens is None else min(left, params.max_tokens)
        self._cut_by = CONTEXT if params.max_tokens is None or params.max_tokens > left else None
        first = Hypothesis(
            track, output.detokenizer, output.matcher, guide, output.thoughts, params.new_guard
        )
        if guide is not None:
            opening = guide.begin()[: self._most]
            track.extend(opening[: left - 1])
            for token in opening:
                first.push(token)
        self._open = [first]

    @property
    def sources(self) -> Sequence[Source]:
        """The tracks of the open hypotheses."""
        return [hypothesis.track for hypothesis in self._open]

    @property
    def is_exact(self) -> bool:
        """Whether nothing was edited."""
        return all(hypothesis.track.exact is None for hypothesis in self._open)

    def hook_rows(self) -> list[tuple[Row, list[int]]]:
        """The logits of all hypotheses."""
        return [(self._logits(one), one.track.shown.show(one.track.tokens)) for one in self._open]

    def hooks_wrote(self) -> bool:
        """Whether the tokens of a hypothesis are not those that hooks have."""
        return any(one.track.shown.differs(one.track.tokens) for one in self._open)

    # -- a step --

    def advance(self, n_running: int) -> None:
        """Extend all hypotheses by a token: of all continuations the most probable stay."""
        self.output.note_token()
        before = self._open
        if self._is_over(before[0]):  # by the tokens that a grammar forces before the first choice
            return
        self._open = self._extend(self._candidates())
        kept = {hypothesis.track.id for hypothesis in self._open}
        for hypothesis in before:
            if hypothesis.track.id not in kept:
                self._runner.close_track(hypothesis.track, park=False)
        best = self._open[0] if self._open else None
        if best is not None:
            self.output.tokens = list(best.tokens)
        if best is None or all(len(one.tokens) >= self._most for one in self._open):
            self._conclude(Ending("length", self._cut_by))
        elif len(self.finished) >= self._width and self._is_hopeless():
            self._conclude(Ending("stop"))

    def _is_over(self, first: Hypothesis) -> bool:
        """Whether forced tokens alone have brought the only hypothesis to its end."""
        if len(self._open) > 1 or not first.tokens:
            return False
        ending = self._ending_of(first)
        if ending is None and len(first.tokens) >= self._most:
            ending = Ending("length", self._cut_by)
        if ending is None:
            return False
        self._finish(first, max(1, len(first.tokens)), ending)
        self._open = []
        self._runner.close_track(first.track, park=False)
        self._conclude(ending)
        return True

    def _candidates(self) -> list[Candidate]:
        """The best continuations of all hypotheses."""
        wanted = 2 * self._width + len(self._end_ids)  # so that enough are left when some of them end
        found: list[Candidate] = []
        fetch_rows(one.track.logits for one in self._open)
        for index, one in enumerate(self._open):
            if len(one.tokens) >= self._most:
                continue
            row = self._logits(one)
            row = add_bias(row, self._bias) if self._bias else row
            logs = log_softmax(row if one.guide is None else one.guide.masked(row)) + one.logprob
            best = np.argpartition(-logs, min(wanted, len(logs)) - 1)[:wanted]
            found += [(float(logs[t]), index, int(t)) for t in best if logs[t] > -np.inf]
        if not found:
            raise InvalidRequest(
                "every token is excluded (all logits are −inf); relax logit_bias or the hook"
            )
        return sorted(found, key=lambda c: (-c[0], c[1], c[2]))[:wanted]

    def _extend(self, candidates: list[Candidate]) -> list[Hypothesis]:
        """Take candidates until there are enough hypotheses; those that end are put aside."""
        chosen: list[Candidate] = []
        for rank, (logprob, index, token) in enumerate(candidates):
            if token in self._end_ids:
                if rank < self._width:
                    ended = self._open[index].fork(self._open[index].track, logprob)
                    self._finish(ended, len(ended.tokens) + 1, Ending("stop", token))
            elif len(chosen) < self._width:
                chosen.append((logprob, index, token))
        opened = [one for one in self._open if len(one.tokens) >= self._most]
        for at, (logprob, index, token) in enumerate(chosen):
            parent = self._open[index]
            only = all(other != index for _, other, _ in chosen[at + 1 :])
            track = parent.track if only else self._runner.fork(parent.track)
            track.running = True
            child = parent.fork(track, logprob)
            forced = [] if child.guide is None else child.guide.push(token)
            following = [token, *forced][: self._most - len(parent.tokens)]
            if child.guard is not None:
                child.repeats = child.guard.push(token)  # forced tokens do not count
            for one in following:
                child.push(one)
            ending = self._ending_of(child)
            if ending is not None:
                self._finish(child, len(child.tokens), ending)
                if not only:
                    self._runner.close_track(track, park=False)
                continue
            track.extend(following if len(child.tokens) < self._most else following[:-1])
            opened.append(child)
        return sorted(opened, key=lambda one: -one.logprob)

    def _ending_of(self, one: Hypothesis) -> Ending | None:
        if one.matcher.matched is not None:
            return Ending("stop", one.matcher.matched)
        if one.guide is not None and one.guide.done:
            return Ending("stop", "grammar")
        return Ending("repetition") if one.repeats else None

    def _finish(self, one: Hypothesis, length: int, ending: Ending) -> None:
        score = one.logprob / length**self._penalty
        self.finished.append(one.finished(score, ending))
        self.finished.sort(key=lambda finished: -finished.score)
        del self.finished[self._width :]

    def _is_hopeless(self) -> bool:
        """Whether no open hypothesis can come to beat the worst of the finished ones."""
        best = self._open[0]
        length = self._most if self._penalty > 0 else len(best.tokens) + 1
        return bool(best.logprob / length**self._penalty <= self.finished[-1].score)

    @staticmethod
    def _logits(one: Hypothesis) -> Row:
        return one.track.host_logits()

    # -- the end --

    def _conclude(self, ending: Ending) -> None:
        """End the search; the open hypotheses end as they are."""
        if ending.reason != "stop" or not self.finished:
            for one in self._open:
                self._finish(one, max(1, len(one.tokens)), ending)
        best = self.finished[0]
        self.output.tokens = list(best.tokens)
        self.output.text = best.text
        self.output.end(best.ending)

    def result(self) -> list[Result]:
        """The finished hypotheses, the best first."""
        timings, n_cached = self.output.timings(1), min(self._first.request_prompt[1], self._n_prompt)
        return [
            Result(
                text=one.text,
                tokens=list(one.tokens),
                finish_reason=one.ending.reason,
                stop_reason=one.ending.why,
                usage=Usage(
                    self._n_prompt,
                    len(one.tokens),
                    n_cached,
                    one.thoughts.n_tokens if one.thoughts else 0,
                    self._first.used_edit,
                ),
                timings=replace(timings, n_decoded=max(0, len(one.tokens) - 1)),
                seed=self._first.random.seed,
                logprob=one.score,
                reasoning=one.thoughts.text if one.thoughts else "",
                answer_start=one.thoughts.answer_start if one.thoughts else 0,
            )
            for one in self.finished
        ]

    def end_early(self, ending: Ending) -> None:
        """End from outside; the hypotheses end as they are."""
        if self.output.ending is None:
            self._conclude(ending)

    def forget_logits(self) -> None:
        """Drop all logits; they are computed again."""
        for one in self._open:
            one.track.forget_logits()

    def drop_draft(self) -> bool:
        """There are no drafts in a search."""
        return False

    def preempt(self) -> None:
        """Give all cells up and keep the tokens."""
        for one in self._open:
            self._runner.release(one.track)

    def close(self) -> None:
        """Close the tracks of all hypotheses."""
        for one in self._open:
            self._runner.close_track(one.track)
