"""A hook that records entropies and the most probable tokens, and changes nothing."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import log

import numpy as np

from stretto.sampling.hooks.row import HookRow, Row, Rows
from stretto.sampling.hooks.trails import Trail, Trails
from stretto.sampling.params import check_integer

EXCLUDED = np.float32(-200.0)  # its exponential is 0 in float32, and 0 times it too
NEAR = np.float32(-7.0)  # most often the best are within a thousandth of the best one


@dataclass(frozen=True)
class Candidate:
    """A token and its probability."""

    token: int
    probability: float


@dataclass(frozen=True)
class Watched:
    """The candidates for one token of an answer.

    `token` is the one that came. It is known from the next call on, so the last one of an answer has None.
    """

    index: int  # in the answer, from 0
    entropy: float  # in nats: 0 where only one token is possible
    top: tuple[Candidate, ...]  # the most probable first
    token: int | None = None


@dataclass
class WatchedRequest:
    """One request: the length of its prompt, and a record for each token of its answer so far."""

    n_prompt: int
    records: list[Watched] = field(default_factory=list)


class Watcher:
    """Records for each token the entropy of the logits and the `top` most probable tokens.

        watcher = Watcher(top=3)
        llm.generate(prompt, hooks=[watcher])
        for record in watcher.records:
            print(record.entropy, record.top[0].token, record.token)

    It reads the row as the hooks before it left it, before temperature and cut-offs. `records` are those of
    the latest request and can be read while it runs; `requests` has one entry for each, in the order they
    began. A request with several sequences (beams) has a record for each at every place, and no `token`.

    >>> watcher = Watcher(top=1)
    >>> watcher(np.array([0, 0, -np.inf], np.float32), [7])
    >>> watcher.records
    [Watched(index=0, entropy=0.6931471805599453, top=(Candidate(token=0, probability=0.5),), token=None)]
    """

    def __init__(self, top: int = 5) -> None:
        check_integer("top", top, 0, 1000)
        self.top = int(top)
        self.requests: list[WatchedRequest] = []
        self._trails = Trails()
        self._request_of: dict[Trail, WatchedRequest] = {}

    @property
    def records(self) -> list[Watched]:
        """The records of the request that started last."""
        return self.requests[-1].records if self.requests else []

    def __call__(self, logits: Row, tokens: list[int]) -> None:
        """Record a row."""
        self._watch(logits, tokens, self._trails.of_tokens(tokens))

    def batch(self, logits: Rows, rows: list[HookRow]) -> None:
        """Record the rows of several requests."""
        for one, row in zip(logits, rows, strict=True):
            self._watch(one, row.tokens, self._trails.of_row(row))

    def _watch(self, logits: Row, tokens: list[int], trail: Trail) -> None:
        request = self._request_of.get(trail)
        if request is None:
            request = self._request_of[trail] = WatchedRequest(trail.n_prompt)
            self.requests.append(request)
        records, index = request.records, len(tokens) - trail.n_prompt
        if [record.index for record in records[-2:]] in ([index - 1], [index - 2, index - 1]):
            records[-1] = replace(records[-1], token=tokens[-1])
        entropy, top = self._measure(logits)
        records.append(Watched(index, entropy, top))

    def _measure(self, logits: Row) -> tuple[float, tuple[Candidate, ...]]:
        highest = logits.max()
        if highest == -np.inf:
            return 0.0, ()
        below = np.maximum(logits - highest, EXCLUDED)  # float32[n_vocab]
        weights = np.exp(below)
        total = float(weights.sum(dtype=np.float64))
        entropy = log(total) - float(weights @ below) / total
        best = best_of(below, self.top)
        return entropy, tuple(Candidate(i, float(weights[i]) / total) for i in best if weights[i] > 0)

    def __repr__(self) -> str:
        return f"Watcher(top={self.top})"


def best_of(below: Row, n: int) -> list[int]:
    """Indices of the n highest values, the best first, of equal ones the lower; the highest value is 0."""
    if n == 0:
        return []
    near = np.flatnonzero(below > NEAR)
    if len(near) < n:
        near = np.arange(len(below))
    if len(near) > n:
        values = below[near]
        near = near[values >= np.partition(values, len(values) - n)[len(values) - n]]
    best: list[int] = near[np.lexsort((near, -below[near]))][:n].tolist()
    return best
