"""A parallel run is a request like others, whose steps are sets: it shares its batches with all that runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, cast

from stretto.engine.engine import Engine
from stretto.engine.params import RequestParams
from stretto.engine.request import Request
from stretto.engine.sequence import Sequence
from stretto.engine.types import FinishReason
from stretto.errors import InvalidRequest
from stretto.parallel.advance import SetSequence
from stretto.parallel.held import HeldSteps
from stretto.parallel.options import ParallelParams
from stretto.parallel.prune import Pruner
from stretto.parallel.render import ParallelText
from stretto.parallel.select import Chosen, check_shares, distribution, select, temper
from stretto.parallel.types import Member, ParallelStep


class ParallelRun(Request):
    """One run from prompt to `ParallelText`. `arrived` holds the steps nobody has taken yet."""

    sequence: SetSequence

    def __init__(
        self, engine: Engine, prompt: list[int] | Sequence, run: ParallelParams, params: RequestParams
    ) -> None:
        for wanted in ("merge", "fork", *(("attention",) if run.measures else ())):
            engine.backend.capabilities.require(wanted, engine.backend.name)
        sequence, tokens = _start(engine, prompt)
        super().__init__(engine, tokens, params, sequence=sequence)
        sequence.watching = run.attention
        self.run = run
        self.can_wait = sequence.exact  # what was edited before it began could not be computed again
        self.steps: list[ParallelStep] = []
        self.arrived: deque[ParallelStep] = deque()
        self._waiting = HeldSteps()
        self._pruner = None if run.prune is None else Pruner(run.prune, run.prune_after)
        self._freed = 0
        left = engine.context_length - sequence.position + 1  # the last step needs no cell
        self._most = left if params.max_tokens is None else min(left, params.max_tokens)

    # -- a step --

    def _advance(self) -> None:
        """Take in what the last set gave, and choose the next one."""
        if self._timed_out():
            self.finish("timeout")
            return
        self._take_in()
        threshold = self.run.threshold_at(len(self.steps) / max(1, self._most - 1))
        chosen = self._choose(threshold)
        self.note_token()
        if chosen.end is not None:
            self._conclude(self._waiting.flush(), "stop", chosen.end)
        else:
            self._go_on(chosen, threshold)

    def _choose(self, threshold: float) -> Chosen:
        """The next set, from the logits as hooks have left them."""
        sequence = self.sequence
        check_shares(sequence.each)
        row = sequence.logits
        best = int(row.argmax())
        plain = sequence.unmixed and not self.params.hooks
        following = temper(sequence.each[0] if plain else distribution(row), self.run.temperature, best)
        return select(following, threshold, self.run.max_width, self._end_ids, best)

    def _take_in(self) -> None:
        """Note the cells and the attention of the set that was computed, and prune."""
        if not self.steps:
            return
        sequence, step = self.sequence, self.steps[-1]
        for one in self.steps if sequence.released else self.steps[-1:]:
            cells = sequence.cells_of(one.position)
            for member in one.members:
                member.cell = cells.get(member.id, member.cell)
        sequence.released = False
        step.attention = sequence.attention
        if self._pruner is None:
            return
        if sequence.received is not None:
            gone = self._pruner.note(sequence.received)
            if gone:
                self._freed += sequence.forget(gone)
        self._pruner.watch(step)
        sequence.probed = self._pruner.places

    def _go_on(self, chosen: Chosen, threshold: float) -> None:
        """Make the chosen tokens the next step, and have them computed unless they are the last."""
        members = [
            Member(token, self._text_of(token), probability, weight)
            for token, probability, weight in zip(
                chosen.tokens, chosen.probabilities, chosen.weights, strict=True
            )
        ]
        sees = self.run.sees(members)
        step = ParallelStep(
            index=len(self.steps),
            position=self.sequence.position,
            members=members,
            text=self._detokenizer.push(members[0].id),
            threshold=threshold,
            edges=self.sequence.each[:, chosen.tokens].tolist(),
        )
        self.steps.append(step)
        self.tokens.append(members[0].id)
        certain = self._matcher.push(step.text)
        self._text.append(certain)
        shown = self._waiting.add(step, len(certain))
        if self._matcher.matched is not None:
            self._conclude(shown + self._waiting.cut(), "stop", self._matcher.matched)
        elif any(stop(self.text) for stop in self.params.stop_functions):
            self._conclude(shown + self._waiting.flush(), "stop", "stop function")
        elif self._exhausted():
            self._conclude(shown + self._waiting.flush(), "length", None)
        else:
            weights = chosen.weights if self.run.combine == "mixture" else None
            self.sequence.push(chosen.tokens, sees, weights)
            if not self._show(shown) and not self.finished:
                self.finish("stop", "callback")

    def _text_of(self, token: int) -> str:
        """What a token would add to the best path; half a character shows as U+FFFD."""
        fork = self._detokenizer.fork()
        return fork.push(token) + fork.flush()

    def _show(self, steps: list[ParallelStep]) -> bool:
        """Hand out steps; False if the callback wants no more."""
        self.arrived += steps
        if steps and self.notify is not None:
            self.notify()
        callback = cast("Callable[[ParallelStep], Any] | None", self.params.callback)
        return callback is None or all(callback(step) is not False for step in steps)

    # -- the end --

    def _conclude(self, steps: list[ParallelStep], reason: FinishReason, why: str | int | None) -> None:
        """Hand out the last steps, and end."""
        self._show(steps)
        if not self.finished:  # by the callback
            self._end(reason, why)

    def finish(self, reason: FinishReason, why: str | int | None = None) -> None:
        """End it from outside; what is there stays."""
        if not self.finished:
            self.arrived += self._waiting.flush()
            self._end(reason, why)

    def text_so_far(self) -> ParallelText:
        """What has come up to now."""
        cut = self._matcher.matched is not None
        return ParallelText(
            steps=self.steps[: len(self.steps) - len(self._waiting)],
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
            usage=self.usage,
            timings=self.timings,
            cells_freed=self._freed,
            rest="" if cut or self._waiting else self._detokenizer.fork().flush(),
        )

    def outcome(self) -> ParallelText:
        """What came of it, once it has finished."""
        if self.error is not None:
            raise self.error
        if self.finish_reason is None:
            raise InvalidRequest("the run has not finished; iterate the stream to its end first")
        return self.text_so_far()


def _start(engine: Engine, prompt: list[int] | Sequence) -> tuple[SetSequence, list[int]]:
    """A sequence to run on: a new one, or a fork of one that is there, which stays as it is."""
    if not isinstance(prompt, Sequence):
        fits = len(prompt) < engine.context_length  # or else the request refuses it
        return SetSequence(engine, prompt if fits else ()), prompt
    with engine.lock:
        prompt.logits  # noqa: B018  # computed now, so that there are cells to share
        sequence = SetSequence(engine, (), prompt.random.fork())
        sequence.follow(prompt)
        return sequence, prompt.tokens


def run_all(engine: Engine, runs: Iterable[ParallelRun]) -> list[ParallelText]:
    """Run several together, each in every batch, and wait for all of them."""
    several = list(runs)
    engine.complete([[run] for run in several])
    return [run.outcome() for run in several]
