"""Tokens that are run ahead: several of one sequence in the backend's own loop."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from stretto.backends.base import Follow, FusedRun, Mask

if TYPE_CHECKING:
    from stretto.engine.sequence import Sequence
    from stretto.sampling.hooks import NativeHook
    from stretto.sampling.params import SamplingParams


def run_ahead(
    sequence: Sequence,
    n: int,
    params: SamplingParams,
    ends: Iterable[int],
    last: bool,
    hooks: tuple[NativeHook, ...] = (),
    mask: Mask | None = None,
    follow: Follow | None = None,
) -> list[int]:
    """Sample and compute up to `n` tokens; fewer if one ends the text, or when somebody arrives.

    `sequence.adopt` those that count, then `settle`. After the `last` there will be no more.
    """
    engine, row, start = sequence._engine, sequence.logits, sequence.position
    engine.make_room(n)
    cells, placed = engine.cells, engine.cells.reserve(sequence.id, n)
    view = cells.views[sequence.id]
    spoken, n_prompt = sequence.spoken
    run = FusedRun(
        logits=row,
        cells=placed,
        position=start,
        view=view.store,
        n_view=view.n,
        table=cells.positions,
        params=params,
        tokens=spoken,
        n_prompt=n_prompt,
        random=sequence.random,
        ends=list(ends),
        last=last,
        hooks=hooks,
        mask=mask,
        follow=follow,
        hurry=engine.worker.hurry,
    )
    metrics, begun, cpu = engine.metrics, time.perf_counter(), time.thread_time()
    try:
        tokens, sequence.ahead = engine.backend.loop(run)
    except BaseException:
        cells.remove(sequence.id, start)
        raise
    finally:
        metrics.sampling += run.sampling
        metrics.forward += time.perf_counter() - begun - run.sampling
        metrics.forward_cpu += time.thread_time() - cpu - run.sampling
    cells.name(sequence.id, placed, tokens)
    if run.n_run < n:
        cells.remove(sequence.id, start + run.n_run)
    return tokens
