"""The forms of a step: how the passes of a plan are run, and how its rows of logits become tokens.

`PlainPass` can do every step. The other forms save what a step costs besides its pass, where a plan asks for
little: `PersistentBatch` keeps what is the same in all steps of requests that just sample, `FusedLoop` lets
the only request run in the backend's own loop. Which one does a step changes no token and no bit of it.
`docs/explanation/engine.md` has what each of them gains.

The engine asks them in order, and uses them under its lock.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from stretto.backends.base import DeviceRow, Draw, FusedRun, GoesAhead, Row, Rows, SamplesRows
from stretto.cache.lags import lag_before
from stretto.engine.decoders.plain import PlainDecoder
from stretto.engine.hooks import run_hooks
from stretto.engine.output import Ending
from stretto.engine.request import AnyRequest
from stretto.engine.runner import Runner
from stretto.engine.scheduler import Plan, Scheduler
from stretto.engine.track import Track
from stretto.errors import InvalidRequest
from stretto.sampling.sampler import WRONG

FUSED_TOKENS = 32  # in one call of the loop; then the engine looks after its queue
FUSED_SECONDS = 0.15  # that a call should take at most: other threads wait for the engine's lock meanwhile
FIRST_TOKENS = 4  # in a call while nobody knows how long a token takes


class StepForm(Protocol):
    """A way through a step: `run`, then `take`."""

    def fits(self, plan: Plan) -> bool:
        """Whether it can do the step of a plan."""
        ...

    def run(self, plan: Plan) -> int:
        """Apply the plan and run its passes; return how many tokens they had."""
        ...

    def take(self, plan: Plan) -> int:
        """Let each request take its tokens from its rows; return how many more were computed meanwhile."""
        ...

    def settle(self) -> None:
        """Leave tracks as a plan expects them: before one is made anew, and after an interrupted step."""
        ...


def step_forms(scheduler: Scheduler, runner: Runner, interrupt: NDArray[np.uint8]) -> tuple[StepForm, ...]:
    """The forms that a backend has, in the order in which they are asked; the last one fits every plan.

    `interrupt` is uint8[1], and not 0 while a request arrives.
    """
    backend, plain = runner.backend, PlainPass(scheduler, runner)
    forms: list[StepForm] = []
    can_loop = backend.capabilities.fused
    if isinstance(backend, SamplesRows) and backend.samples_rows:
        # The loop is the better one for a single request, unless the batch does not wait for the host either.
        least = 2 if can_loop and not isinstance(backend, GoesAhead) else 1
        forms.append(PersistentBatch(scheduler, runner, backend, least))
    if can_loop:
        forms.append(FusedLoop(plain, scheduler, runner, interrupt))
    return (*forms, plain)


class PlainPass:
    """The form of every step: the passes of the plan, the hooks, and tokens for each request by itself."""

    def __init__(self, scheduler: Scheduler, runner: Runner) -> None:
        self._scheduler = scheduler
        self._runner = runner

    def fits(self, plan: Plan) -> bool:
        """It does."""
        return True

    def run(self, plan: Plan) -> int:
        """Start the admitted requests, and compute what the plan says."""
        begun = time.monotonic()
        n_tokens = self._compute(plan)
        if not plan.only_decodes:
            for request in self._scheduler.running:
                if request.prompt_steps is not None:
                    request.note_prompt(begun)
        return n_tokens

    def _compute(self, plan: Plan) -> int:
        scheduler, runner, metrics = self._scheduler, self._runner, self._runner.metrics
        for request, matches in plan.admitted:
            scheduler.admit(request)
            for track, match in matches:
                runner.share(track, match)
        for source, target in plan.copies:
            runner.share_with(source, target)
        for one in plan.redo:
            one.redo_last()
        if plan.redo:  # some need no pass: they had the rows that their logits are made of
            plan.work = [(source, n) for source, n in plan.work if source.n_pending]
        forward = metrics.forward
        n_tokens = runner.run(plan.work, at_end=plan.only_decodes and not (plan.redo or plan.copies))
        if plan.hidden:
            n_tokens += runner.run(plan.hidden, hidden=True)
        if n_tokens:
            scheduler.learn(n_tokens, metrics.forward - forward, plan.only_decodes)
            metrics.count_pass(n_tokens, len(plan.work) + len(plan.hidden))
        return n_tokens

    def take(self, plan: Plan) -> int:
        """Run the hooks of requests whose logits are there, and let each take its tokens."""
        ready, hooked = self._scheduler.ready()
        if hooked:
            run_hooks(hooked)
        if self._runner.prepares is not None:
            self._prepare(ready)
        n_running = len(self._scheduler.running)
        for request in ready:
            if request.finished:  # a hook or a callback has ended it
                continue
            if request.is_expired:
                request.finish("timeout")
            else:
                request.advance(request.decoder.advance, n_running)
        return 0

    def _prepare(self, ready: list[AnyRequest]) -> None:
        """Have rows that are on a device sampled together, before each request asks for its own."""
        draws: list[Draw] = []
        for request in ready:
            if isinstance(request.decoder, PlainDecoder) and not request.finished:
                request.advance(request.decoder.add_draws, draws)
        self._runner.prepare(draws)

    def settle(self) -> None:
        """It keeps nothing."""


class PersistentBatch:
    """Plain requests, where nothing but sampling decides how each goes on, and each has a token pending.

    While the same requests decode, a step is one pass over all of them, one call that samples all rows, and
    one loop that appends the tokens: what is the same in each step is kept here, and its plan stays the same.
    Where nobody reads the events of a text before its end, its tokens become text while a device computes the
    next ones.

    A device that can (`GoesAhead`) does not wait for the host at all: the next pass is queued behind the
    sampling of its tokens, before the host has seen them, and every step takes the tokens of a pass that the
    last one has queued. Where a text ends with such a token, its row of the pass was in vain: its cell is
    free again, and the row is left out of the next pass. Whatever else comes up ends the batch, and the
    requests get the rows of the pass as those of any other (`settle`).
    """

    def __init__(self, scheduler: Scheduler, runner: Runner, device: SamplesRows, least: int) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._device = device
        self._least = least  # requests
        self._plan: Plan | None = None  # whose requests these are
        self._held: list[int] = []  # tokens of those that wait, behind their texts
        self._n_given = 0  # of those that wait have been given out since
        self._rows: Rows | list[Any] | None = None  # of this step
        self._alive: list[int] = []  # those that are still wanted
        self._ahead: Rows | None = None  # of a pass over the pending tokens, which is queued
        self._dropped: set[int] = set()  # ids of tracks that gave their cells of that pass back
        self._may_go_ahead = True
        self._left = 0  # steps until a limit has to be checked
        self._have([], [])

    def fits(self, plan: Plan) -> bool:
        """Whether a plan repeats its step, or has requests that need nothing but sampling."""
        return plan is self._plan or self._gather(plan)

    def _gather(self, plan: Plan) -> bool:
        """Consist of the requests of a plan, if all of them just sample."""
        n = len(plan.requests)
        if not (self._least <= n == len(plan.work) and plan.only_decodes) or self._scheduler.waiting:
            return False
        if plan.admitted or plan.redo or plan.copies or plan.waiting_for_images:
            return False
        for request in plan.requests:
            decoder = request.decoder
            if (
                type(decoder) is not PlainDecoder
                or not decoder.is_sampled_only
                or request.finished
                or request.siblings
                or request.deadline is not None
            ):
                return False
        decoders = [request.decoder for request in plan.requests]
        self._may_go_ahead = True
        self._left = min(decoder.n_unchecked for decoder in decoders)
        self._have(list(plan.requests), decoders)
        for decoder in decoders:
            decoder.before_end = partial(self._before_end, decoder.track)
        self._plan = plan
        return True

    def _have(self, requests: list[AnyRequest], decoders: list[PlainDecoder]) -> None:
        """Consist of these requests from now on."""
        self._n = len(requests)
        self._requests, self._decoders = requests, decoders
        self._tracks = [decoder.track for decoder in decoders]
        self._texts = [track.tokens for track in self._tracks]
        self._ids = [track.id for track in self._tracks]
        self._pending = [tokens[-1] for tokens in self._texts]  # whose cells the next pass fills
        self._params = [decoder.params.sampling for decoder in decoders]
        self._random = [
            (i, track.random)
            for i, (track, params) in enumerate(zip(self._tracks, self._params, strict=True))
            if params.temperature != 0
        ]
        self._ends = frozenset[int]().union(*(decoder.end_ids for decoder in decoders))
        self._at_once = [i for i, decoder in enumerate(decoders) if not decoder.output.can_wait]
        self._waiting = [i for i, decoder in enumerate(decoders) if decoder.output.can_wait]

    def run(self, plan: Plan) -> int:
        """One pass over all of them, unless it is queued already."""
        plan.repeats = False  # unless all goes well
        runner, metrics = self._runner, self._runner.metrics
        try:
            self._rows = self._ahead
            if self._rows is None:
                forward = metrics.forward
                _, self._rows = runner.decode(self._tracks, self._pending, self._ids)
                if runner.prepares is None:  # the pass is over
                    self._scheduler.learn(self._n, metrics.forward - forward, only_decodes=True)
        finally:
            self._catch_up()
        self._alive = [i for i, request in enumerate(self._requests) if not request.finished]
        n = len(self._alive)
        metrics.count_pass(n, n)
        return n

    def take(self, plan: Plan) -> int:
        """One token for each."""
        rows, alive, metrics = self._rows, self._alive, self._runner.metrics
        self._rows = None
        begun, forward = time.perf_counter(), metrics.forward
        tokens = self._sample(rows, alive)
        metrics.sampling += time.perf_counter() - begun - (metrics.forward - forward)
        if len(alive) < self._n:
            assert rows is not None
            rows, tokens = [rows[i] for i in alive], [tokens[i] for i in alive]
            self._have([self._requests[i] for i in alive], [self._decoders[i] for i in alive])
        self._left -= 1
        if self._left <= 0 or min(tokens, default=0) < 0 or not self._ends.isdisjoint(tokens):
            for i, token in enumerate(tokens):
                self._accept(i, token, rows)
            self._held = []
            plan.requests = [request for request in self._requests if not request.finished]
            plan.repeats = self._ahead is not None
            return 0
        if self._at_once:
            for i in self._at_once:
                self._accept(i, tokens[i], rows)
            for i in self._waiting:
                if not self._requests[i].finished:
                    self._texts[i].append(tokens[i])
            if self._ahead is not None:  # those that have ended are left out by the next step
                plan.requests = [request for request in self._requests if not request.finished]
        else:
            deque(map(list.append, self._texts, tokens), maxlen=0)
        self._pending = self._held = tokens
        self._n_given, plan.repeats = 0, True
        return 0

    def settle(self) -> None:
        """End the batch: tokens that wait are given out, and rows that are being computed given to all."""
        self._catch_up()
        if self._ahead is not None:
            for i, (request, track) in enumerate(zip(self._requests, self._tracks, strict=True)):
                if request.finished:
                    continue
                if track.n_missing < 0:  # its token was not accepted: the step was interrupted
                    self._drop(track)
                else:
                    track.take_row(self._ahead[i])
        self._ahead = self._plan = self._rows = None
        for decoder in self._decoders:
            decoder.before_end = None
        self._held = []
        self._have([], [])

    def _catch_up(self) -> None:
        """Give out the tokens that wait."""
        while self._held and self._n_given < len(self._waiting):
            i = self._waiting[self._n_given]
            self._n_given += 1
            request = self._requests[i]
            if not request.finished:
                request.advance(self._decoders[i].give_out, self._held[i])

    def _sample(self, rows: Any, alive: list[int]) -> list[int]:
        """A token for each row, also of those that are no longer needed; queues the next pass if it can."""
        device = self._device
        uniforms = [0.0] * self._n
        for i, random in self._random:
            uniforms[i] = random.uniform()
        self._ahead = None
        try:
            if isinstance(device, GoesAhead) and self._can_go_ahead(device, len(alive)):
                tokens = self._go_ahead(rows, uniforms, alive, device)
                if tokens is not None:
                    return tokens
            return device.sample_rows(rows, self._params, uniforms)
        except BaseException:  # the logits are computed once more, and get the same numbers
            self._ahead = None
            for _, random in self._random:
                random.skip_to(random.draws - 1)
            raise

    def _can_go_ahead(self, device: GoesAhead, n: int) -> bool:
        """Whether no limit ends a text with the next token, and the step behind it has cells."""
        return (
            self._may_go_ahead
            and self._left > 1
            and self._n <= device.most_queued
            and n > 0
            and self._runner.can_decode_ahead(n)
        )

    def _go_ahead(
        self, rows: Any, uniforms: list[float], alive: list[int], device: GoesAhead
    ) -> list[int] | None:
        """Queue the sampling and the pass over its tokens, then wait for these; None if one has none yet."""
        runner, ids = self._runner, [self._ids[i] for i in alive]
        device.queue_rows(rows, self._params, uniforms)
        which = alive if len(alive) < self._n else None
        batch, ahead = runner.decode((), [0] * len(ids), ids, lambda one: device.forward_queued(one, which))
        try:
            tokens = device.take_rows(self._n)
            sampled = [tokens[i] for i in alive]
            if min(sampled) < 0:  # rows that are sampled in another way, or not at all
                self._may_go_ahead = False
                runner.take_back(ids)
                return None
            runner.cells.name_each(ids, batch.taken, sampled)
        except BaseException:
            runner.take_back(ids)
            raise
        self._ahead, self._dropped = ahead, set()
        return tokens

    def _before_end(self, track: Track) -> None:
        self._catch_up()
        self._drop(track)

    def _drop(self, track: Track) -> None:
        """Give back the cell of a pass that is queued: the text does not go on, and if closed has done so."""
        if self._ahead is not None and track.id not in self._dropped:
            self._dropped.add(track.id)
            if not track.closed:
                track.cells.remove(track.id, track.cells.end(track.id) - 1)

    def _accept(self, i: int, token: int, rows: Any) -> None:
        """Let a request take its token as in any other step."""
        request = self._requests[i]
        if request.finished:
            return
        if token < 0:
            request.fail(InvalidRequest(WRONG[token]))
            return
        self._tracks[i].take_row(rows[i])
        request.advance(self._decoders[i].accept_sampled, token)
        if request.finished:
            self._drop(self._tracks[i])


class FusedLoop:
    """The only request, in the backend's own loop: several tokens of a plain decoder, each a step.

    It runs where the request asked for that, or unasked where the backend gains by it: but not if its reader
    takes one token after the other. The loop calls back for every token, so each is accepted and given out
    when it is made, exactly as by the other forms.
    """

    def __init__(
        self, plain: PlainPass, scheduler: Scheduler, runner: Runner, interrupt: NDArray[np.uint8]
    ) -> None:
        self._plain = plain  # runs the pass over the prompt, and takes a token where there is room for one
        self._scheduler = scheduler
        self._runner = runner
        self._interrupt = interrupt
        self.token_seconds = FUSED_SECONDS / FIRST_TOKENS  # of the last call
        self.gains = runner.backend.capabilities.ahead  # so that it runs unasked
        self.is_looping = False  # tokens come one by one, in the middle of a step

    def fits(self, plan: Plan) -> bool:
        """Whether the only request may run so."""
        if len(plan.requests) != 1:
            return False
        request = plan.requests[0]
        decoder = request.decoder
        if not isinstance(decoder, PlainDecoder) or request.siblings:
            return False
        return decoder.params.fused or (self.gains and decoder.gains_ahead and not request.single_steps)

    def run(self, plan: Plan) -> int:
        """Compute what is pending."""
        return self._plain.run(plan)

    def take(self, plan: Plan) -> int:
        """Run as many tokens as a call may have; if that is less than two, take one as in any other step."""
        (request,), metrics = plan.requests, self._runner.metrics
        decoder, n_decoded = request.decoder, metrics.decoded_tokens
        if request.finished or request.is_expired or not decoder.track.has_logits:
            return self._plain.take(plan)
        self.is_looping = True
        try:
            has_run = request.advance(self._loop, decoder, request.deadline)
        finally:
            self.is_looping = False
        if not (has_run or request.finished):
            self._plain.take(plan)
        return metrics.decoded_tokens - n_decoded

    def settle(self) -> None:
        """It keeps nothing."""

    def _loop(self, decoder: PlainDecoder, deadline: float | None) -> bool:
        """Run up to `FUSED_TOKENS` tokens; False if there is no room for more than one."""
        track, runner = decoder.track, self._runner
        start, most = track.position, decoder.params.max_tokens
        limit = min(FUSED_TOKENS, max(2, int(FUSED_SECONDS / self.token_seconds)))
        left = limit if most is None else most - len(decoder.output.tokens)
        n = min(limit, left, runner.cells.n_free, runner.context_length - start)
        if n < 2 or not decoder.is_sampling or track.n_pending:
            return False
        if runner.states is not None and runner.states.n_missing([(track.id,)]):
            return False
        if lag_before(runner.cells, track.id, start):  # the loop rotates by running positions
            return False
        python = 0.0

        def follow(token: int, room: int) -> tuple[list[int], bool]:
            nonlocal python
            begun = time.perf_counter()
            runner.history.tick(begun)
            try:
                if deadline is not None and time.monotonic() >= deadline:
                    decoder.accept_fused(token, 0)
                    decoder.output.end_early(Ending("timeout"))
                    return [], False
                return decoder.accept_fused(token, room)
            finally:
                python += time.perf_counter() - begun

        row = track.logits
        assert row is not None
        runner.make_room(n)
        slot = -1 if runner.states is None else runner.states.own(track.id, start + n)
        cells = runner.cells
        try:
            placed = cells.reserve(track.id, n)
            view = cells.views[track.id]
            tokens, n_prompt = track.text_tokens
            run = FusedRun(
                logits=row,
                cells=placed,
                position=start,
                view=view.store,
                n_view=view.n,
                table=cells.positions,
                params=decoder.params.sampling,
                tokens=list(tokens),
                n_prompt=n_prompt,
                random=track.random,
                ends=list(decoder.end_ids),
                hooks=decoder.params.native_hooks,
                mask=None if decoder.guide is None else decoder.guide.mask,
                follow=follow,
                interrupt=self._interrupt,
                slot=slot,
                sequence=track.id,
                edits=view.edits,
                mix=track.mix,
            )
            begun = time.perf_counter()
            found, last_row = self._timed(run, lambda: python)
            self.token_seconds = max(1e-6, (time.perf_counter() - begun) / len(found))
            runner.check_maps()
            self._keep(track, placed, found, run.n_run, start, last_row)
        except BaseException:  # wherever it came: the tokens are computed again
            cells.remove(track.id, start)
            track.logits = None
            raise
        runner.metrics.decoded_tokens += run.n_run
        runner.metrics.steps += run.n_run
        for _ in range(run.n_run):
            runner.metrics.count_pass(1, 1)
        if found[-1] in decoder.end_ids and decoder.output.ending is None:
            decoder.accept(found[-1])
        return True

    def _timed(self, run: FusedRun, python: Callable[[], float]) -> tuple[list[int], Row | DeviceRow]:
        """Run the backend's loop, and count its time without that of callbacks."""
        metrics, begun, cpu = self._runner.metrics, time.perf_counter(), time.thread_time()
        try:
            return self._runner.backend.loop(run)
        finally:
            metrics.sampling += run.sampling
            metrics.forward += time.perf_counter() - begun - run.sampling - python()
            metrics.forward_cpu += time.thread_time() - cpu - run.sampling - python()

    def _keep(
        self,
        track: Track,
        placed: NDArray[np.int32],
        tokens: list[int],
        n_run: int,
        start: int,
        row: Row | DeviceRow,
    ) -> None:
        """Keep the cells of the tokens that were computed; the others are pending, or ended the text."""
        cells = self._runner.cells
        cells.name(track.id, placed, tokens)
        if cells.slots is not None:
            cells.slots.settle(track.id, start + n_run)
        if n_run < len(placed):
            cells.remove(track.id, start + n_run)
        track.logits = row if not track.n_pending else None
        if track.checkpoints is not None:
            track.checkpoints.mark(track.n_placed, len(track))
