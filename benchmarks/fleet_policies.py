"""Routing policies that `stretto.deploy.policy.PrefixPolicy` is compared with."""

import random

from stretto.deploy.policy import Ask, Holdings, idle_first, session_weight


class LeastLoaded:
    """The replica with the fewest requests; prefixes do not matter."""

    def order(self, ask: Ask, holdings: Holdings, now: float) -> list[str]:
        """All replicas, the least busy first."""
        return idle_first(holdings, now)


class PowerOfTwo:
    """The less busy one of two that are drawn: Ray Serve's default."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)

    def order(self, ask: Ask, holdings: Holdings, now: float) -> list[str]:
        """All replicas, the less busy one of the first two first."""
        names = list(holdings.replicas)
        self._random.shuffle(names)
        names[:2] = sorted(names[:2], key=lambda name: holdings.load(name, now))
        return names


class SessionHash:
    """The replica that a session hashes to, however busy: what a balancer without reports can do."""

    def order(self, ask: Ask, holdings: Holdings, now: float) -> list[str]:
        """All replicas, by their weights for the session."""
        return sorted(holdings.replicas, key=lambda name: session_weight(ask.session, name))
