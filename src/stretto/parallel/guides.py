"""A grammar along the paths of a run: each member of the last set has the guide of the best path to it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stretto.structured import Guide

Row = NDArray[np.float32]
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
