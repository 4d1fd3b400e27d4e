"""A parallel run: a request whose decoder takes sets of tokens; it shares its batches with all that runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.backends.base import Row
from stretto.engine.aio import AsyncEventStream, finished
from stretto.engine.branch import adapt, check_prompt, check_same_salt, collect_end_ids, new_guide
from stretto.engine.decoders.base import OneTrack
from stretto.engine.engine import Engine
from stretto.engine.output import CONTEXT, Ending
from stretto.engine.params import RequestParams
from stretto.engine.request import Request
from stretto.engine.runner import Runner
from stretto.engine.sequence import Sequence, track_in
from stretto.engine.stream import EventStream
from stretto.engine.track import TokenView, Track
from stretto.engine.types import Usage
from stretto.engine.worker import Worker
from stretto.errors import InvalidRequest
from stretto.parallel.lattice import Lattice
from stretto.parallel.options import ParallelParams
from stretto.parallel.output import SetOutput
from stretto.parallel.render import ParallelText
from stretto.parallel.sets import Chosen, SetSource, pick, pick_from
from stretto.parallel.types import Floats, Member, ParallelStep, Place
from stretto.sampling.sampler import RandomStream
from stretto.structured import Guide

# A grammar along the paths of a run: each member of the last set has the guide of the best path to it.

Flags = NDArray[np.bool_]


@dataclass
class _Lane:
    """The state of the grammar behind a member; the guide is past the forced tokens already."""

    guide: Guide
    forced: list[int]

    @property
    def done(self) -> bool:
        """Whether nothing can follow."""
        return self.guide.done and not self.forced

    def allowed(self, n_vocab: int) -> Flags:
        """bool[n_vocab]: the tokens that may come next."""
        flags = np.zeros(n_vocab, bool)
        if self.forced:
            flags[self.forced[0]] = True
        elif not self.guide.done:
            flags[self.guide.allowed()] = True
        return flags

    def after(self, token: int) -> _Lane:
        """The state behind a token more; this one is used up."""
        if self.forced:
            return _Lane(self.guide, self.forced[1:])
        return _Lane(self.guide, self.guide.push(token))

    def fork(self) -> _Lane:
        """An independent copy."""
        return _Lane(self.guide.fork(), list(self.forced))


class PathGuides:
    """The guides of the last set's members. Where no path ends in a member, it has none."""

    def __init__(self, guide: Guide) -> None:
        self._lanes: list[_Lane | None] = [_Lane(guide, guide.begin())]
        self._flags: Flags = np.zeros((0, 0), bool)  # bool[members, n_vocab], of the next token

    @property
    def forced(self) -> int | None:
        """The token that must come next, where one path is left and the grammar leaves no choice."""
        lane = self._lanes[0]
        return lane.forced[0] if len(self._lanes) == 1 and lane is not None and lane.forced else None

    def masked(self, logits: Row, best: int) -> Row:
        """A copy of the logits with −inf for tokens that may follow no member; `best` has the best path.

        Only the best path may end.
        """
        n = len(logits)
        self._flags = np.stack(
            [np.zeros(n, bool) if lane is None else lane.allowed(n) for lane in self._lanes]
        )
        lane = self._lanes[best]
        ends = [token for token in (() if lane is None else lane.guide.ends) if token < n]
        may_end = self._flags[best, ends]
        self._flags[:, ends] = False
        self._flags[best, ends] = may_end
        return np.where(self._flags.any(axis=0), logits, np.float32(-np.inf)).astype(np.float32, copy=False)

    def allows(self, tokens: list[int]) -> Flags:
        """bool[members, tokens]: which tokens may follow which member; after `masked`, or of forced ones."""
        if self.forced is not None:
            return np.array([[token == self.forced for token in tokens]])
        return self._flags[:, tokens]

    def push(self, tokens: list[int], before: list[int], alive: list[bool]) -> None:
        """Go on to the next set: `before[i]` is the member that the best path to token i comes from."""
        users = [which for which, lives in zip(before, alive, strict=True) if lives]
        lanes: list[_Lane | None] = []
        for token, which, lives in zip(tokens, before, alive, strict=True):
            lane = self._lanes[which]
            if lane is None or not lives:
                lanes.append(None)
            else:
                users.remove(which)
                lanes.append((lane.fork() if which in users else lane).after(token))
        self._lanes = lanes

    def is_done(self, member: int) -> bool:
        """Whether nothing can follow a member of the last set."""
        lane = self._lanes[member]
        return lane is not None and lane.done


# Which members of a set later tokens look at, and which may go.


@dataclass
class _Open:
    """A set that is being measured."""

    step: ParallelStep
    total: NDArray[np.float64]  # float64[members], the sum over the later tokens so far
    n_tokens: int = 0
    n_steps: int = 0


class Pruner:
    """Measures the attention that the members of sets get, and says after some steps which get too little.

    A member is pruned whose attention, the mean over layers, heads and the tokens of the next `after` steps,
    is under `ratio` × the mean of its set. The most probable member always stays.
    """

    def __init__(self, ratio: float, after: int) -> None:
        self.ratio = ratio
        self.after = after
        self._open: list[_Open] = []

    @property
    def places(self) -> list[Place]:
        """The members whose attention is to be measured in the next step, as `note` expects them."""
        return [(one.step.position, member.id) for one in self._open for member in one.step.members]

    def watch(self, step: ParallelStep) -> None:
        """Measure a set from the next step on; a single token has nothing to be compared with."""
        if step.width > 1:
            self._open.append(_Open(step, np.zeros(step.width)))

    def note(self, received: Floats) -> list[Place]:
        """Take the attention of a step's tokens, float32[tokens, places]; return the members to prune now."""
        start = 0
        gone: list[Place] = []
        for one in self._open:
            n = one.step.width
            one.total += received[:, start : start + n].sum(axis=0, dtype=np.float64)
            one.n_tokens += len(received)
            one.n_steps += 1
            start += n
            if one.n_steps == self.after:
                gone += self._decide(one)
        self._open = [one for one in self._open if one.n_steps < self.after]
        return gone

    def _decide(self, one: _Open) -> list[Place]:
        shares = one.total / one.n_tokens
        least, gone = self.ratio * shares.mean(), []
        for i, (member, share) in enumerate(zip(one.step.members, shares.tolist(), strict=True)):
            member.attention = share
            if i and share < least:
                member.kept = False
                gone.append((one.step.position, member.id))
        return gone


Run = Request["SetDecoder"]


class SetDecoder(OneTrack):
    """Keeps every token that is probable enough, as a set at one position.

    Hooks, stops and grammars act on the best path through the sets. It may change behind what is decided.
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
        self._guides = None if guide is None else PathGuides(guide)
        self._new_guide = None if guide is None else lambda: new_guide(params)
        self._n_prompt = len(track)
        self._pruner = None if run.prune is None else Pruner(run.prune, run.prune_after)
        self._n_freed = 0
        self._shown = TokenView()
        left = runner.context_length - track.position + 1  # the last step needs no cell
        self._most = left if params.max_tokens is None else min(left, params.max_tokens)
        self._cut_by = CONTEXT if params.max_tokens is None or params.max_tokens > left else None

    @property
    def is_exact(self) -> bool:
        """Whether all of it can be computed again."""
        return self.source.is_exact

    def hook_rows(self) -> list[tuple[Row, list[int]]]:
        """The logits that the next set is taken from, with the best path."""
        return [(self.source.logits, self._shown.show(self.output.tokens))]

    def hooks_wrote(self) -> bool:
        """Whether the best path is not what hooks have."""
        return self._shown.differs(self.output.tokens)

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
        source, run, guides, ends = self.source, self.run, self._guides, self._end_ids
        mixture = source.mixture
        if guides is not None and guides.forced is not None:
            return Chosen([guides.forced], [1.0])
        if guides is None and not self.hooks and run.temperature == 1.0:
            return pick(mixture, source.weights, threshold, run.max_width, ends)
        row = source.logits if guides is None else guides.masked(source.logits, self.output.path.best)
        return pick_from(row, run.temperature, threshold, run.max_width, ends)

    def _take_in(self) -> None:
        """Note the cells and the attention of the set that was computed, and prune."""
        steps, source = self.output.steps, self.source
        if not steps:
            return
        step = steps[-1]
        for one in steps[:-1] if source.released else ():
            cells = source.map_cells(one.position)
            for member in one.members:
                member.cell = cells.get(member.id, member.cell)
        for member, cell in zip(step.members, source.cells, strict=True):
            member.cell = cell
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
        output, mixture = self.output, self.source.mixture
        members = [
            Member(token, output.decode_token(token), probability, weight)
            for token, probability, weight in zip(
                chosen.tokens, chosen.probabilities, chosen.weights, strict=True
            )
        ]
        sees = self.run.sees(members)
        step = ParallelStep(
            index=len(output.steps),
            position=self.source.position,
            members=members,
            threshold=threshold,
            edges=mixture.probabilities(chosen.tokens),
            logprobs=mixture.log_probabilities(chosen.tokens),
            allowed=None if self._guides is None else self._guides.allows(chosen.tokens).tolist(),
        )
        shown, ending = output.add(step)
        if self._guides is not None:
            self._guides.push(chosen.tokens, output.path.before, output.path.alive)
            if ending is None and self._guides.is_done(output.path.best):
                ending = Ending("stop", "grammar")
        if ending is None and len(output.steps) >= self._most:
            ending = Ending("length", self._cut_by)
        if ending is None:
            weights = chosen.weights if self.run.combine == "mixture" else None
            self.source.push(chosen.tokens, sees, weights)
        output.emit(shown, ending)

    # -- the end --

    @property
    def usage(self) -> Usage:
        """Tokens counted so far."""
        n_cached = min(self.track.request_prompt[1], self._n_prompt)
        return Usage(self._n_prompt, len(self.output.steps), n_cached, edit_mode=self.track.used_edit)

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
            lattice=Lattice(output.shown, output.read, self._accepts),
            cells_freed=self._n_freed,
            rest=output.rest,
        )

    def _accepts(self, tokens: list[int]) -> bool:
        """Whether the grammar allows a path."""
        guide = None if self._new_guide is None else self._new_guide()
        return guide is None or guide.n_valid(tokens) == len(tokens)

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
        with engine.arrivals.arriving(), engine.lock:
            track = track_in(engine, prompt)
            if not len(track):
                raise InvalidRequest("the prompt is empty; give at least one token", param="prompt")
            check_same_salt(track, params)
            prompt.logits  # noqa: B018  # computed now, so that there are cells to share
            track = runner.fork(track)
            track.begin_request()
    else:
        check_prompt(engine, len(prompt), params)
        track = runner.new_track(prompt, RandomStream(0), params.cache_salt)
    adapt(engine, track, params)
    track.running = True
    guide = new_guide(params)
    detokenizer = engine.tokenizer.detokenizer(after=track.tokens[-1], exact=guide is not None)
    output = SetOutput(runner.metrics, params, track.tokens, detokenizer, run.delay)
    decoder = SetDecoder(runner, track, run, params, output, collect_end_ids(engine, params), guide)
    return Request(decoder, runner.metrics, priority=params.priority, timeout=params.timeout)


def run_all(engine: Engine, runs: Iterable[Run]) -> list[ParallelText]:
    """Run several together, each in every batch, and wait for all of them."""
    several = list(runs)
    engine.complete([[run] for run in several])
    return [run.result() for run in several]


# A parallel run as an iterator over its steps.


class ParallelStream(EventStream[ParallelStep]):
    """Iterate it for `ParallelStep`s; `result` is the whole when it has ended, `cancel()` ends it.

    A step comes when its set is chosen. Its members' cells, attention and pruning are filled in later.
    """

    def __init__(self, engine: Engine, run: Run) -> None:
        super().__init__(engine, run)
        self.run = run

    @property
    def result(self) -> ParallelText:
        """The whole text; finishes the run first."""
        for _ in self:
            pass
        text: ParallelText = self.run.result()
        return text

    @property
    def so_far(self) -> ParallelText:
        """What has come up to now."""
        return self.run.decoder.result()


# Parallel runs for asyncio: steps to iterate with `async for`, texts to await.


class AsyncParallelStream(AsyncEventStream[ParallelStep]):
    """Iterate it with `async for`; `await stream.result()` is the whole when it has ended.

    async for step in llm.aparallel("The cat", stream=True):
        print(step.brackets, end="", flush=True)
    """

    async def result(self) -> ParallelText:
        """The whole text; finishes the run first."""
        text: ParallelText = (await self._exhausted()).result()
        return text


async def outcomes(
    worker: Worker, make: Callable[[], list[Run]], whole: bool
) -> ParallelText | list[ParallelText]:
    """Make runs, and wait until all of them have finished; a cancelled task ends them.

    What came of all of them is a list if `whole`, else what came of the first.
    """
    runs: list[Run] = []

    def begin() -> list[list[Request[Any]]]:
        runs.extend(make())
        return [[run] for run in runs]

    await finished(worker, begin)
    texts = [run.result() for run in runs]
    return texts if whole else texts[0]
