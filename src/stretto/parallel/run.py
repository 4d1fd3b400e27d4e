"""A parallel run is a request like others, whose steps are sets: it shares its batches with all that runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from stretto.engine.engine import Engine
from stretto.engine.params import RequestParams
from stretto.engine.request import Request
from stretto.engine.sequence import Sequence
from stretto.engine.types import FinishReason
from stretto.errors import InvalidRequest
from stretto.parallel.advance import SetSequence
from stretto.parallel.options import ParallelParams
from stretto.parallel.prune import Pruner
from stretto.parallel.render import ParallelText
from stretto.parallel.select import Chosen, Rows, combine, distributions, select, temper
from stretto.parallel.types import Member, ParallelStep
from stretto.sampling.params import SamplingParams


class ParallelRun(Request):
    """One run from prompt to `ParallelText`. `arrived` holds the steps nobody has taken yet."""

    can_wait = False  # its sets cannot be computed again from tokens alone
    sequence: SetSequence

    def __init__(self, engine: Engine, prompt: list[int] | Sequence, params: ParallelParams) -> None:
        for wanted in ("merge", "fork", *(("attention",) if params.measures else ())):
            engine.backend.capabilities.require(wanted, engine.backend.name)
        request = RequestParams(
            SamplingParams(),
            max_tokens=params.max_tokens,
            timeout=params.timeout,
            ignore_eos=params.ignore_eos,
        )
        sequence, tokens = _start(engine, prompt)
        super().__init__(engine, tokens, request, sequence=sequence)
        sequence.watching = params.attention
        self.run = params
        self.steps: list[ParallelStep] = []
        self.arrived: deque[ParallelStep] = deque()
        self._pruner = None if params.prune is None else Pruner(params.prune, params.prune_after)
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
        each = distributions(self.sequence.rows)
        weights = [member.weight for member in self.steps[-1].members] if self.steps else [1.0]
        threshold = self.run.threshold_at(len(self.steps) / max(1, self._most - 1))
        following = temper(combine(each, weights, self.run.combine), self.run.temperature)
        rows = self.sequence.rows
        best = int(rows[0].argmax()) if len(rows) == 1 or self.run.combine == "best" else None
        chosen = select(following, threshold, self.run.max_width, self._end_ids, best)
        self.note_token()
        if chosen.end is not None:
            self._end("stop", chosen.end)
        else:
            self._go_on(chosen, each, threshold)

    def _take_in(self) -> None:
        """Note the cells and the attention of the set that was computed, and prune."""
        if not self.steps:
            return
        sequence, step = self.sequence, self.steps[-1]
        for member, cell in zip(step.members, sequence.cells.tolist(), strict=True):
            member.cell = cell
        step.attention = sequence.attention
        if self._pruner is None:
            return
        if sequence.received is not None:
            gone = self._pruner.note(sequence.received)
            if gone:
                self._freed += sequence.forget([member.cell for member in gone if member.cell is not None])
        self._pruner.watch(step)
        sequence.probed = self._pruner.cells

    def _go_on(self, chosen: Chosen, each: Rows, threshold: float) -> None:
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
            edges=each[:, chosen.tokens].tolist(),
        )
        self.steps.append(step)
        self.tokens.append(members[0].id)
        last = self._exhausted()
        if not last:
            self.sequence.push(chosen.tokens, sees)
        self.arrived.append(step)
        if last:
            self._end("length", None)
        elif self.notify is not None:
            self.notify()

    def _text_of(self, token: int) -> str:
        """What a token would add to the best path; half a character shows as U+FFFD."""
        fork = self._detokenizer.fork()
        return fork.push(token) + fork.flush()

    # -- the end --

    def finish(self, reason: FinishReason, why: str | int | None = None) -> None:
        """End it from outside; what is there stays."""
        if not self.finished:
            self._end(reason, why)

    def text_so_far(self) -> ParallelText:
        """What has come up to now."""
        return ParallelText(
            steps=list(self.steps),
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
            usage=self.usage,
            timings=self.timings,
            cells_freed=self._freed,
            rest=self._detokenizer.fork().flush(),
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
