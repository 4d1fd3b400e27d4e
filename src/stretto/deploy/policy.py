"""Which replica gets a request: pure functions of what a router knows. Used by the router and a simulation.

    policy = PrefixPolicy()
    first, *others = policy.order(Ask(keys), holdings, now)

`PrefixPolicy` is the one that replicas are deployed with; others to compare it with are in
benchmarks/fleet_policies.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Protocol

from stretto.deploy.holdings import Ask, Holdings
from stretto.errors import InvalidRequest


class Policy(Protocol):
    """An order of replicas for a request, the best first."""

    def order(self, ask: Ask, holdings: Holdings, now: float) -> list[str]:
        """All replicas, the one that should get the request first."""
        ...


@dataclass(frozen=True)
class PrefixPolicy:
    """The replica that holds the longest prefix, unless it is too busy.

    - What is saved in one replica (a stored response) goes there, busy or not.
    - A replica that holds at least `min_share` of the prompt's blocks gets it, or all of an earlier prompt
      that it follows up; of several the one that holds most. A shorter prefix, or one that many conversations
      begin with, as a system prompt, is no reason to crowd one replica; nor is one that many prompts ended
      with: of equally busy replicas the one that holds it gets the next such prompt.
    - It is too busy if it has more than `margin` requests, and more than `ratio` times as many, beyond the
      least busy one. Then, and for new conversations, the least busy one gets the request; of several the
      one that had the fewest lately.
    - A request without a prefix that belongs to a session goes where the session went, unless too busy.
    """

    margin: int = 16
    ratio: float = 1.0
    min_share: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.margin <= 10_000:
            raise InvalidRequest(
                f"margin must be from 0 to 10000 requests, not {self.margin!r}", param="margin"
            )
        if not 0 <= self.ratio <= 100:
            raise InvalidRequest(f"ratio must be from 0 to 100, not {self.ratio!r}", param="ratio")
        if not 0 < self.min_share <= 1:
            raise InvalidRequest(
                f"min_share must be above 0, at most 1, not {self.min_share!r}", param="min_share"
            )

    def order(self, ask: Ask, holdings: Holdings, now: float) -> list[str]:
        """All replicas, the one that should get the request first."""
        ranked = idle_first(holdings, now)
        if not ranked:
            return []
        if ask.saved is not None and (keeper := holdings.keeper(ask.saved)) is not None:
            return _first(keeper, ranked)
        least = holdings.load(ranked[0], now)
        most = least + max(self.margin, self.ratio * least)
        lengths = holdings.lengths(ask.keys, now)
        wanted = max(1, self.min_share * len(ask.keys))
        for name in sorted(lengths, key=lambda name: (-lengths[name], ranked.index(name))):
            last = ask.keys[lengths[name] - 1]
            if holdings.is_common(last) or (lengths[name] < wanted and not holdings.ends_prompt(last)):
                break
            if holdings.load(name, now) <= (least if holdings.ends_many(last) else most):
                return _first(name, ranked)
        if ask.session:
            name = min(ranked, key=lambda name: session_weight(ask.session, name))
            if holdings.load(name, now) <= most:
                return _first(name, ranked)
        return ranked


class RoundRobin:
    """One replica after the other."""

    def __init__(self) -> None:
        self._n = 0

    def order(self, ask: Ask, holdings: Holdings, now: float) -> list[str]:
        """All replicas, beginning with the next one."""
        names = sorted(holdings.replicas)
        self._n += 1
        at = self._n % max(1, len(names))
        return names[at:] + names[:at]


def idle_first(holdings: Holdings, now: float) -> list[str]:
    """All replicas, the least busy first; of equally busy ones that which had the fewest requests lately."""
    return sorted(holdings.replicas, key=lambda name: (holdings.load(name, now), holdings.share(name, now)))


def _first(name: str, ranked: list[str]) -> list[str]:
    return [name, *(other for other in ranked if other != name)]


def session_weight(session: str, name: str) -> bytes:
    """The weight of a replica for a session (rendezvous hashing): when one goes, only its sessions move."""
    return blake2b(f"{session}\0{name}".encode("utf-8", "replace"), digest_size=8).digest()
