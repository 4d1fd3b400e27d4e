"""The fused loop of ONNX decoders: several tokens of one sequence without the engine's steps between them.

Sampling and accepting a token are the engine's own, so it makes the same tokens. It saves the plan, the batch
and the bookkeeping of a step, which a model of a few milliseconds a token notices.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from stretto.backends.base import FusedRun
from stretto.backends.looping import goes_on, is_interrupted, next_uniform
from stretto.sampling.sampler import choose

Floats = NDArray[np.float32]


def run_loop(run: FusedRun, compute: Callable[[list[int]], Floats]) -> tuple[list[int], Floats]:
    """Sample tokens, and have those computed that were not yet, until one ends it.

    `compute` returns float32[1, n_vocab], the logits after the last of some tokens.
    """
    found: list[int] = []
    row = run.logits
    assert isinstance(row, np.ndarray)  # rows of this backend are on the host
    run.logits = np.empty(0, np.float32)  # the memory of the row can be used again
    while len(found) < len(run.cells):
        begun = time.perf_counter()
        if run.hooks:
            row = row.copy()  # logits belong to whoever computed them
            for hook in run.hooks:
                hook(row, run.tokens)
        found.append(choose(row, run.params, run.tokens, run.n_prompt, next_uniform(run), run.mask))
        run.sampling += time.perf_counter() - begun
        if not goes_on(run, found):
            break
        del row
        row = compute(found[run.n_run :])[0]
        run.n_run = len(found)
        if is_interrupted(run):
            break
    return found, row
