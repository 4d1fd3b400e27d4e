"""Parts of fused loops that are written in Python: random numbers, accepted tokens, interrupts."""

from __future__ import annotations

from stretto.backends.base import FusedRun


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


def is_interrupted(run: FusedRun) -> bool:
    """Whether another request has arrived."""
    return run.interrupt is not None and bool(run.interrupt[0])
