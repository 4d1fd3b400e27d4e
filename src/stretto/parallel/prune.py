"""Which members of a set later tokens look at, and which may go."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stretto.parallel.types import Floats, ParallelStep, Place


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
