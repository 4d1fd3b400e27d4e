"""How the texts of different calls share steps: those of a large call neither keep others out nor slow them
down for long.

A call with few texts has all of them in each step. The texts that larger calls have beyond that may double
the time of the step and no more; they take turns, those with the fewest tokens first. Where more rows cost
little, all of them are in every step, and so they are where steps are short. When `max_running` texts run, a
smaller call may still begin: those of larger calls take turns in the places that are left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import pairwise

import numpy as np

from stretto.engine.request import AnyRequest
from stretto.engine.runner import Work

MAX_SLOWDOWN = 2.0  # of a step, by texts that calls have beyond those of the smallest
SHORT_SECONDS = 0.005  # a step that is worth no cut
ANY_NUMBER = 1 << 30
RISE = 1.1  # from one step to the next: a stall does not count as the cost of rows


class RowCosts:
    """The time of a decoding step by its number of rows, learned from the steps so far."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}  # by the number of rows

    def learn(self, n_rows: int, seconds: float) -> None:
        """Note that a step over so many rows took so long."""
        self._seconds[n_rows] = min(seconds, RISE * self._seconds.get(n_rows, seconds))

    def rows_beside(self, n_rows: int) -> int:
        """How many rows a step may have so that it is not much slower than with so many.

        Numbers of rows between those that are known take times between theirs.
        """
        if not self._seconds:
            return ANY_NUMBER
        rows = sorted(self._seconds)
        seconds = self._plausible(rows)
        most = max(SHORT_SECONDS, MAX_SLOWDOWN * float(np.interp(n_rows, rows, seconds)))
        for (low, fast), (high, slow) in pairwise(zip(rows, seconds, strict=True)):
            if high > n_rows and slow > most:
                share = (most - fast) / (slow - fast) if slow > fast else 0.0
                return max(n_rows, low + int(share * (high - low)))
        return ANY_NUMBER

    def _plausible(self, rows: list[int]) -> list[float]:
        """The times of these rows: no more than of more rows, and no more for each than of fewer rows."""
        each = np.array([self._seconds[n] / n for n in rows])
        seconds = np.minimum.accumulate(each) * rows
        found: list[float] = np.minimum.accumulate(seconds[::-1])[::-1].tolist()
        return found


class Places:
    """The places of running texts, and the calls that have them: who finds one more."""

    def __init__(self, running: list[AnyRequest], max_running: int) -> None:
        self._max_running = max_running
        self._texts: Counter[tuple[float, int]] = Counter()  # by call, with its priority's order
        self._owned: Counter[str] = Counter()  # by owner
        self._owners: dict[tuple[float, int], str] = {}  # of the calls
        for request in running:
            self.take(request)

    def take(self, request: AnyRequest) -> None:
        """Count a request that starts."""
        if not request.urgent:
            call = request.order[0], request.call
            self._texts[call] += request.n_texts
            self._owners[call] = request.share.owner
            self._owned[request.share.owner] += request.n_texts

    def candidates(self, waiting: Iterable[AnyRequest]) -> Iterator[AnyRequest]:
        """The requests that find places, in the order of the queue; those taken meanwhile count.

        Smaller calls pass one that has to wait, if they are of its priority.
        """
        held: set[int] = set()  # calls that wait
        held_order = 0.0
        held_texts: dict[str, int] = {}  # of each owner's smallest: larger ones need not be tried
        for request in waiting:
            call = request.order[0], request.call
            if held and call[0] > held_order:
                return
            least = held_texts.get(request.share.owner, ANY_NUMBER)
            if request.call in held or (request.n_texts >= least and call not in self._texts):
                continue
            if request.urgent or self._suffice(call, request) or self._is_due(request):
                yield request
                continue
            held.add(request.call)
            held_order = call[0]
            if call not in self._texts:
                held_texts[request.share.owner] = request.n_texts

    def _is_due(self, request: AnyRequest) -> bool:
        """Whether its owner finds places, if no other keeps more of them than it has then."""
        owner = request.share.owner
        n = self._owned.get(owner, 0) + request.n_texts
        others = [n_texts for other, n_texts in self._owned.items() if other != owner]
        return bool(others) and sum([min(texts, n) for texts in others]) + n <= self._max_running

    def _suffice(self, call: tuple[float, int], request: AnyRequest) -> bool:
        """Whether more texts of a call find places, if no call keeps more of them than it has then.

        Calls of its owner that have passed it do not count. More texts than there are places start when no
        other runs.
        """
        n_texts, owner = request.n_texts, request.share.owner
        n = self._texts.get(call, 0) + n_texts
        counted = [
            others
            for key, others in self._texts.items()
            if key <= call or key[0] != call[0] or self._owners[key] != owner
        ]
        return not counted or sum([min(others, n) for others in counted]) + n_texts <= self._max_running


def shared_rows(
    decoding: list[Work],
    calls: Sequence[Hashable],
    others: Sequence[Hashable],
    costs: RowCosts,
    max_rows: int = ANY_NUMBER,
) -> list[Work]:
    """The rows of a step, of those that decode and belong to these calls; `others` are calls of prompts.

    Owners may stand for calls.
    """
    sizes: Counter[Hashable] = Counter([*calls, *others])
    base = min(sizes.values()) * len(sizes)
    room = min(costs.rows_beside(base), max_rows) - len(others)
    if len(decoding) <= room:
        return decoding
    most, largest = min(sizes.values()), max(sizes.values())  # of one call
    texts: Counter[Hashable] = Counter(calls)
    while most < largest and sum(min(n, most + 1) for n in texts.values()) <= room:
        most += 1
    by_age = sorted(range(len(decoding)), key=lambda i: len(decoding[i][0].track))
    taken: Counter[Hashable] = Counter()
    chosen: list[int] = []
    for i in by_age:
        if taken[calls[i]] < most:
            taken[calls[i]] += 1
            chosen.append(i)
    return [decoding[i] for i in sorted(chosen)]
