"""A parallel run: a request whose decoder takes sets of tokens; it shares its batches with all that runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

from stretto.engine.branch import adapt, check_prompt, check_same_salt, end_ids_of, new_guide
from stretto.engine.decoders.base import OneTrack
from stretto.engine.engine import Engine
from stretto.engine.metrics import Metrics
from stretto.engine.output import Ending, Output
from stretto.engine.params import RequestParams
from stretto.engine.request import Request
from stretto.engine.runner import Runner
from stretto.engine.sequence import Sequence
from stretto.engine.track import Row, Track
from stretto.engine.types import Usage
from stretto.errors import InvalidRequest
from stretto.parallel.held import HeldSteps
from stretto.parallel.options import ParallelParams
from stretto.parallel.prune import Pruner
from stretto.parallel.render import ParallelText
from stretto.parallel.select import Chosen, check_shares, distribution, select, temper
from stretto.parallel.sets import SetSource
from stretto.parallel.types import Member, ParallelStep
from stretto.sampling.rng import RandomStream
from stretto.structured import Guide
from stretto.text.detokenizer import Detokenizer
from stretto.text.stops import StopMatcher

Run = Request["SetDecoder"]


class SetOutput(Output[ParallelStep]):
    """The steps of a run. One that may begin a stop string is held until that is known."""

    def __init__(self, metrics: Metrics, params: RequestParams, detokenizer: Detokenizer) -> None:
        super().__init__(metrics)
        self.steps: list[ParallelStep] = []
        self.detokenizer = detokenizer
        self._params = params
        self._matcher = StopMatcher(params.stop)
        self._held = HeldSteps()
        self._text = ""

    def text_of(self, token: int) -> str:
        """What a token would add to the best path; half a character shows as U+FFFD."""
        fork = self.detokenizer.fork()
        return fork.push(token) + fork.flush()

    def read(self, step: ParallelStep) -> tuple[list[ParallelStep], Ending | None]:
        """Take a step; return those that may be shown, and why the run ends here if it does."""
        self.steps.append(step)
        certain = self._matcher.push(step.text)
        self._text += certain
        shown = self._held.add(step, len(certain))
        if self._matcher.matched is not None:
            return shown + self._held.cut(), Ending("stop", self._matcher.matched)
        if any(stop(self._text) for stop in self._params.stop_functions):
            return shown + self._held.flush(), Ending("stop", "stop function")
        return shown, None

    def emit(self, steps: list[ParallelStep], ending: Ending | None = None) -> None:
        """Give out steps, and the ending with the last of them."""
        if ending is not None:
            steps = steps + self._held.flush()
        self.events += steps
        if steps and self.notify is not None:
            self.notify()
        callback = cast("Callable[[ParallelStep], Any] | None", self._params.callback)
        go_on = callback is None or all(callback(step) is not False for step in steps)
        if ending is not None:
            self.end(ending)
        elif not go_on:
            self.end_early(Ending("stop", "callback"))

    def end_early(self, ending: Ending) -> None:
        """End without another step."""
        if self.ending is None:
            self.events += self._held.flush()
            self.end(ending)

    @property
    def shown(self) -> list[ParallelStep]:
        """The steps that are not held back."""
        return self.steps[: len(self.steps) - len(self._held)]

    @property
    def rest(self) -> str:
        """U+FFFD for a character that was never finished."""
        cut = self._matcher.matched is not None
        return "" if cut or len(self._held) else self.detokenizer.fork().flush()


class SetDecoder(OneTrack):
    """Keeps every token that is probable enough, as a set at one position.

    A grammar follows the best path: the members of a set are the tokens that it allows there.
    """

    def __init__(
        self,
        runner: Runner,
        track: Track,
        run: ParallelParams,
        params: RequestParams,
        output: SetOutput,
        end_ids: frozenset[int],
        guide: Guide | None = None,
    ) -> None:
        super().__init__(track)
        self.output: SetOutput = output
        self.source = SetSource(runner, track)
        self.sources = (self.source,)
        self.source.watching = run.attention
        self.hooks = params.hooks
        self.can_preempt = self.source.is_exact  # edited tokens cannot be computed again
        self.run = run
        self._runner = runner
        self._end_ids = end_ids
        self._guide = guide
        self._forced = [] if guide is None else guide.begin()
        self._n_prompt = len(track)
        self._pruner = None if run.prune is None else Pruner(run.prune, run.prune_after)
        self._n_freed = 0
        left = runner.context_length - track.position + 1  # the last step needs no cell
        self._most = left if params.max_tokens is None else min(left, params.max_tokens)

    @property
    def is_exact(self) -> bool:
        """Whether all of it can be computed again."""
        return self.source.is_exact

    def hook_rows(self) -> list[tuple[Row, list[int]]]:
        """The logits that the next set is taken from, with the best path."""
        return [(self.source.logits, self.source.path)]

    # -- a step --

    def advance(self, n_running: int) -> None:
        """Take in what the last set gave, and choose the next one."""
        self._take_in()
        steps = self.output.steps
        threshold = self.run.threshold_at(len(steps) / max(1, self._most - 1))
        chosen = self._choose(threshold)
        self.output.note_token()
        if chosen.end is not None:
            self.output.emit([], Ending("stop", chosen.end))
        else:
            self._go_on(chosen, threshold)

    def _choose(self, threshold: float) -> Chosen:
        """The next set, from the logits as hooks have left them."""
        source, guide = self.source, self._guide
        check_shares(source.each)
        if self._forced:
            return Chosen([self._forced[0]], [1.0])
        row = source.logits if guide is None else guide.masked(source.logits)
        best = int(row.argmax())
        plain = source.unmixed and not self.hooks and guide is None
        following = temper(source.each[0] if plain else distribution(row), self.run.temperature, best)
        return select(following, threshold, self.run.max_width, self._end_ids, best)

    def _take_in(self) -> None:
        """Note the cells and the attention of the set that was computed, and prune."""
        steps, source = self.output.steps, self.source
        if not steps:
            return
        step = steps[-1]
        for one in steps if source.released else steps[-1:]:
            cells = source.cells_of(one.position)
            for member in one.members:
                member.cell = cells.get(member.id, member.cell)
        source.released = False
        step.attention = source.attention
        if self._pruner is None:
            return
        if source.received is not None:
            pruned = self._pruner.note(source.received)
            if pruned:
                self._n_freed += source.prune(pruned)
        self._pruner.watch(step)
        source.probed = self._pruner.places

    def _go_on(self, chosen: Chosen, threshold: float) -> None:
        """Make the chosen tokens the next step, and have them computed unless they are the last."""
        output = self.output
        members = [
            Member(token, output.text_of(token), probability, weight)
            for token, probability, weight in zip(
                chosen.tokens, chosen.probabilities, chosen.weights, strict=True
            )
        ]
        sees = self.run.sees(members)
        step = ParallelStep(
            index=len(output.steps),
            position=self.source.position,
            members=members,
            text=output.detokenizer.push(members[0].id),
            threshold=threshold,
            edges=self.source.each[:, chosen.tokens].tolist(),
        )
        shown, ending = output.read(step)
        if ending is None and self._is_complete(members[0].id):
            ending = Ending("stop", "grammar")
        if ending is None and len(output.steps) >= self._most:
            ending = Ending("length")
        if ending is None:
            weights = chosen.weights if self.run.combine == "mixture" else None
            self.source.push(chosen.tokens, sees, weights)
        output.emit(shown, ending)

    def _is_complete(self, token: int) -> bool:
        """Follow the best path in the grammar; say whether nothing is allowed behind this token."""
        if self._guide is None:
            return False
        if self._forced:  # the guide is past it already
            self._forced = self._forced[1:]
        else:
            self._forced = self._guide.push(token)
        return self._guide.done and not self._forced

    # -- the end --

    @property
    def usage(self) -> Usage:
        """Tokens counted so far."""
        return Usage(self._n_prompt, len(self.output.steps), min(self.track.n_cached, self._n_prompt))

    def result(self) -> ParallelText:
        """What has come up to now."""
        output = self.output
        ending = output.ending
        return ParallelText(
            steps=output.shown,
            finish_reason=None if ending is None else ending.reason,
            stop_reason=None if ending is None else ending.why,
            usage=self.usage,
            timings=output.timings(len(output.steps)),
            cells_freed=self._n_freed,
            rest=output.rest,
        )

    def end_early(self, ending: Ending) -> None:
        """End from outside; the steps so far stay."""
        self.output.end_early(ending)

    def forget_logits(self) -> None:
        """Undo what an interrupted hook may have changed."""
        self.source.forget_logits()

    def preempt(self) -> None:
        """Give the cells up; the sets are computed again."""
        self.source.release()

    def close(self) -> None:
        """Close the track."""
        self.source.close()


def new_run(engine: Engine, prompt: list[int] | Sequence, run: ParallelParams, params: RequestParams) -> Run:
    """A request for one run: from a prompt, or from a fork of a sequence, which stays as it is."""
    runner = engine.runner
    for wanted in ("merge", "fork", *(("attention",) if run.measures else ())):
        runner.backend.capabilities.require(wanted, runner.backend.name)
    if runner.slots is not None:
        raise runner.slots.unsupported(
            "a set of tokens at one position", "use llm.generate, with n or beams for several texts"
        )
    if isinstance(prompt, Sequence):
        with engine.lock:
            track = prompt.track_in(engine)
            if not len(track):
                raise InvalidRequest("the prompt is empty; give at least one token", param="prompt")
            check_same_salt(track, params)
            prompt.logits  # noqa: B018  # computed now, so that there are cells to share
            track = runner.fork(track)
    else:
        check_prompt(engine, len(prompt), params)
        track = runner.new_track(prompt, RandomStream(0), params.cache_salt)
    adapt(engine, track, params)
    track.running = True
    guide = new_guide(params)
    detokenizer = engine.tokenizer.detokenizer(after=track.tokens[-1], exact=guide is not None)
    output = SetOutput(runner.metrics, params, detokenizer)
    decoder = SetDecoder(runner, track, run, params, output, end_ids_of(engine, params), guide)
    return Request(decoder, runner.metrics, priority=params.priority, timeout=params.timeout)


def run_all(engine: Engine, runs: Iterable[Run]) -> list[ParallelText]:
    """Run several together, each in every batch, and wait for all of them."""
    several = list(runs)
    engine.complete([[run] for run in several])
    return [run.result() for run in several]
