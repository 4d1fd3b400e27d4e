"""Turns of callers: who has many requests does not keep the first one of another waiting.

Each request has a `Share`: its owner, and how much weight that has. While requests of several owners are
there, tokens are counted for each, divided by its weight, and whoever has got the least has the next turn: in
the queue, among prompts that are computed, and when cells or places are full. An owner that comes anew starts
where the others stand, so nobody saves turns up while it asks nothing.

Counting is in tokens, never in seconds: the same requests take the same turns on any machine.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from itertools import groupby

from stretto.engine.limits import Share
from stretto.engine.request import AnyRequest
from stretto.errors import ShareFull

MAX_DEBT_TOKENS = 16_384  # that an owner may be behind the others, whatever it had before


class Turns:
    """The tokens that each owner has got, by weight."""

    def __init__(self) -> None:
        self._served: dict[str, float] = {}

    @property
    def has_several(self) -> bool:
        """Whether there may be requests of more than one owner."""
        return len(self._served) > 1

    def enter(self, share: Share, present: Iterable[AnyRequest]) -> None:
        """Note that an owner has a request; `present` are those that were there before."""
        served = self._served
        if len(served) == 1 and share.owner in served:
            return
        active = {request.share.owner for request in present if not request.finished}
        if not active:
            served.clear()
        if share.owner not in active:
            low = min((served.get(owner, 0.0) for owner in active), default=0.0)
            served[share.owner] = min(max(served.get(share.owner, 0.0), low), low + MAX_DEBT_TOKENS)
        for owner in active:
            served.setdefault(owner, 0.0)

    def charge(self, tokens: dict[Share, int]) -> None:
        """Count tokens that were computed."""
        for share, n in tokens.items():
            self._served[share.owner] = self._served.get(share.owner, 0.0) + n / share.weight

    def rank(self, share: Share) -> float:
        """How much an owner has got: less goes first."""
        return self._served.get(share.owner, 0.0)

    def in_order(self, queue: Iterable[AnyRequest]) -> Iterator[AnyRequest]:
        """The requests of a queue by turns, within each priority; those of one owner keep their order."""
        for _, level in groupby(queue, key=lambda request: request.order[0]):
            waiting: dict[str, deque[AnyRequest]] = {}
            for request in level:
                waiting.setdefault(request.share.owner, deque()).append(request)
            served = {owner: self._served.get(owner, 0.0) for owner in waiting}
            while waiting:
                owner = min(waiting, key=lambda one: (served[one], waiting[one][0].number))
                request = waiting[owner].popleft()
                yield request
                served[owner] += max(1, request.n_pending) / request.share.weight
                if not waiting[owner]:
                    del waiting[owner]


def count_owners(requests: Iterable[AnyRequest]) -> int:
    """How many owners these requests have."""
    return len({request.share.owner for request in requests})


def check_cells(requests: tuple[AnyRequest, ...], present: Iterable[AnyRequest]) -> None:
    """Raise `ShareFull` if the tokens of an owner's requests would take more cells than it may have."""
    share = requests[0].share
    if share.max_cells is None:
        return
    wanted = sum(map(_count_tokens, requests))
    held = sum(_count_tokens(one) for one in present if one.share.owner == share.owner and not one.finished)
    if wanted + held > share.max_cells:
        remedy = "try again when they have ended" if wanted <= share.max_cells else "shorten the prompt"
        raise ShareFull(
            f"cells: this request has {wanted:,} tokens, the running ones of this key have {held:,}, and "
            f"together they may take {share.max_cells:,} cells: {remedy}",
            param="cells",
        )


def _count_tokens(request: AnyRequest) -> int:
    return sum(len(source.track) for source in request.sources)


def find_largest(running: Iterable[AnyRequest], share: Share) -> AnyRequest | None:
    """The request that makes room for the first one of an owner: the youngest of whoever else has most cells.

    None if no other owner runs several; one that cannot be computed again is left alone.
    """
    cells: Counter[str] = Counter()
    n: Counter[str] = Counter()
    for request in running:
        if request.share.owner != share.owner and not request.urgent and not request.finished:
            cells[request.share.owner] += max(1, sum(source.track.n_placed for source in request.sources))
            n[request.share.owner] += 1
    several = [owner for owner in cells if n[owner] > 1]
    if not several:
        return None
    largest = max(several, key=lambda owner: cells[owner])
    found = [
        request
        for request in running
        if request.share.owner == largest and request.decoder.can_preempt and request.decoder.is_exact
    ]
    return max(found, key=lambda request: (request.order[0], request.number), default=None)
