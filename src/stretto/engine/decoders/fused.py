"""Running ahead: several tokens of a plain decoder in the backend's own loop, while it is the only request.

The loop calls back for every token, so each is accepted and given out when it is made, exactly as by the
Python loop. It saves the Python around a forward pass (`benchmarks/loops.py` measures how much).
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from stretto.backends.base import DeviceRow, FusedRun
from stretto.cache.lags import lag_before
from stretto.engine.decoders.plain import PlainDecoder
from stretto.engine.output import Ending
from stretto.engine.rows import Row
from stretto.engine.runner import Runner
from stretto.engine.track import Track

FUSED_TOKENS = 32  # in one call of the loop; then the engine looks after its queue
FUSED_SECONDS = 0.15  # that a call should take at most: other threads wait for the engine's lock meanwhile
FIRST_TOKENS = 4  # in a call while nobody knows how long a token takes


class Ahead:
    """A plain decoder in the backend's loop."""

    def __init__(self, runner: Runner, interrupt: NDArray[np.uint8]) -> None:
        self._runner = runner
        self._interrupt = interrupt  # uint8[1]: not 0 when another request arrives
        self._token_seconds = FUSED_SECONDS / FIRST_TOKENS  # of the last call

    def run(self, decoder: PlainDecoder, deadline: float | None) -> bool:
        """Run up to `FUSED_TOKENS` tokens ahead, each a step; False if there is no room for more than one."""
        track, runner = decoder.track, self._runner
        most = decoder.params.max_tokens
        limit = min(FUSED_TOKENS, max(2, int(FUSED_SECONDS / self._token_seconds)))
        left = limit if most is None else most - len(decoder.output.tokens)
        n = min(limit, left, runner.cells.n_free, runner.context_length - track.position)
        if n < 2 or not decoder.is_sampling or track.n_pending:
            return False
        if runner.states is not None and runner.states.n_missing([(track.id,)]):
            return False
        if lag_before(runner.cells, track.id, track.position):  # the loop rotates by running positions
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

        row, start = track.logits, track.position
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
            found, last_row = self._loop(run, lambda: python)
            self._token_seconds = max(1e-6, (time.perf_counter() - begun) / len(found))
            runner.check_maps()
            self._settle(track, placed, found, run.n_run, start, last_row)
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

    def _loop(self, run: FusedRun, python: Callable[[], float]) -> tuple[list[int], Row | DeviceRow]:
        """Run the backend's loop, and count its time without that of callbacks."""
        metrics, begun, cpu = self._runner.metrics, time.perf_counter(), time.thread_time()
        try:
            return self._runner.backend.loop(run)
        finally:
            metrics.sampling += run.sampling
            metrics.forward += time.perf_counter() - begun - run.sampling - python()
            metrics.forward_cpu += time.thread_time() - cpu - run.sampling - python()

    def _settle(
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
