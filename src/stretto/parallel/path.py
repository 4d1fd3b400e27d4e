"""The most probable path through sets as they come: Viterbi's algorithm with a bounded delay."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import inf

Logs = Sequence[Sequence[float]]  # [members before][members]: log-probability of each edge


class BestPath:
    """Keeps, for each member of the last set, the most probable path that ends there.

    A set's member on the best path is decided as soon as all surviving paths agree on it. After `delay` more
    sets it is decided anyway: that of the best path then, and paths that differ there end. Of equal paths the
    one through earlier members wins.

    >>> from math import log
    >>> path = BestPath(delay=8)
    >>> path.add([[log(0.6), log(0.4)]])
    >>> path.tail, path.settle()
    ([0], [])
    >>> path.add([[log(0.1)], [log(0.9)]])
    >>> path.tail, path.settle(), path.logprob == log(0.4) + log(0.9)
    ([1, 0], [1, 0], True)
    """

    def __init__(self, delay: int) -> None:
        self._delay = delay
        self._scores = [0.0]  # of the best path to each member of the last set
        self._back: deque[list[int]] = deque()  # of each undecided set: the member before each of its members
        self.before: list[int] = []  # the member of the set before on the best path to each of the last set
        self.n_forced = 0  # decisions that could not wait

    @property
    def logprob(self) -> float:
        """The log-probability of the best path."""
        return max(self._scores)

    @property
    def best(self) -> int:
        """The member of the last set that the best path ends in."""
        return self._scores.index(max(self._scores))

    @property
    def alive(self) -> list[bool]:
        """Which members of the last set a path still ends in."""
        return [score > -inf for score in self._scores]

    def add(self, logs: Logs) -> None:
        """Take the next set, by the log-probabilities of its members after each member of the last one."""
        before, scores = [], []
        for edges in zip(*logs, strict=True):  # to each member; sets are small: arrays would take longer
            totals = [score + edge for score, edge in zip(self._scores, edges, strict=True)]
            scores.append(max(totals))
            before.append(totals.index(scores[-1]))
        self.before, self._scores = before, scores
        self._back.append(before)

    @property
    def tail(self) -> list[int]:
        """The members of the undecided sets on the best path."""
        return self._to(self.best)

    def settle(self, all_of_it: bool = False) -> list[int]:
        """The members that are decided now, of the next sets in order; at the end, all of the best path."""
        best = self.tail
        if all_of_it:
            self._back.clear()
            return best
        ends = [end for end, score in enumerate(self._scores) if score > -inf]
        paths = [self._to(end) for end in ends]
        n = 0
        while n < len(best) and all(path[n] == best[n] for path in paths):
            n += 1
        while len(best) - n > self._delay:
            self._end_others(best[n], n, ends, paths)
            self.n_forced += 1
            n += 1
        for _ in range(n):
            self._back.popleft()
        return best[:n]

    def _end_others(self, member: int, at: int, ends: list[int], paths: list[list[int]]) -> None:
        """End the paths that do not go through a member of an undecided set."""
        for end, path in zip(ends, paths, strict=True):
            if path[at] != member:
                self._scores[end] = -inf

    def _to(self, end: int) -> list[int]:
        """The path to a member of the last set, through the undecided sets."""
        path = []
        for back in reversed(self._back):
            path.append(end)
            end = back[end]
        return path[::-1]
