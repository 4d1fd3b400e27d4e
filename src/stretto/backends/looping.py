"""Parts of fused loops that are written in Python: random numbers, accepted tokens, batches, interrupts."""

from __future__ import annotations

import numpy as np

from stretto.backends.base import FusedRun
from stretto.backends.batch import Batch, Placement


def next_uniform(run: FusedRun) -> float:
    """The random number of the next token; greedy sampling takes none."""
    return 0.0 if run.params.temperature == 0 else run.random.uniform()


def goes_on(run: FusedRun, found: list[int]) -> bool:
    """Have the last token accepted, and add the forced ones that follow it; False if it ends the loop."""
    token = found[-1]
    if token in run.ends:
        return False
    forced, accepted = list[int](), True
    if run.follow is not None:
        forced, accepted = run.follow(token, len(run.cells) - len(found))
    found += forced
    run.tokens += [token, *forced]
    return accepted


def make_batch(run: FusedRun, tokens: list[int]) -> Batch:
    """The next tokens of a run, in the cells that are reserved for them."""
    n, at = len(tokens), run.n_run
    length = run.n_view - len(run.cells) + at
    batch = Batch()
    batch.extend(tokens, run.position + at, [max(run.sequence, 0)], logits=True)
    batch.placed(
        Placement(
            run.cells[at : at + n],
            [run.view[: length + n]],
            np.zeros(n, np.int32),
            np.arange(length + 1, length + n + 1, dtype=np.int32),
            run.table,
            slots=np.full(n, run.slot, np.int32) if run.slot >= 0 else None,
            sequences=[run.sequence],
            edits=[run.edits],
        )
    )
    return batch


def is_interrupted(run: FusedRun) -> bool:
    """Whether another request has arrived."""
    return run.interrupt is not None and bool(run.interrupt[0])
