"""Which replica gets a request, by what a router knows of them. Used by the router and a simulation.

    policy = PrefixPolicy()
    first, *others = policy.order(Ask(keys), holdings, now)

`PrefixPolicy` is the one that replicas are deployed with; others to compare it with are in
benchmarks/fleet_policies.py.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple, Protocol

from stretto.deploy.prefixes import unpack_keys
from stretto.errors import wrong_value

# What a router knows of its replicas: their last reports, and where it has sent requests since.
#
# No Ray here: the simulation of `benchmarks/fleet.py` uses it as the router does. Times are in seconds.


PICK_SECONDS = 30.0  # that a request's prefix counts as held, before a report has to say so
PICK_STRIDE = 8  # blocks of a request between those that are remembered
LOAD_SECONDS = 2.0  # that a request counts as load, before a report has to say so
REPORT_SECONDS = 0.25  # that a report may be old when it comes
SHARE_SECONDS = 60.0  # in which the share of a replica in all requests halves
MAX_PICKS = 200_000  # keys of requests that are remembered
MAX_BLOCKS_NOTED = 100_000  # where prompts ended, and as many where they parted
COMMON_FORKS = 2  # prompts that parted behind a block, so that the next one to part there is no follow-up
COMMON_ENDS = 3  # prompts that ended with a block: turns of one conversation seldom do


class Ask(NamedTuple):
    """The part of a request that routing looks at.

    `keys` are those of its token blocks; `is_exact` says whether replicas report such keys too, or the router
    has to remember them by itself. `saved` is the key of something that one replica alone has. `replica` is
    the name of the only one that may get the request.
    """

    keys: Sequence[int] = ()
    session: str = ""
    saved: int | None = None
    is_exact: bool = True
    replica: str = ""


@dataclass
class ReplicaRecord:
    """The last report of a replica, and the requests sent to it since."""

    load: int = 0  # requests, by the report
    keys: frozenset[int] = frozenset()
    saved: frozenset[int] = frozenset()
    picks: deque[float] = field(default_factory=deque)  # times of requests, since the report
    share: float = 0.0  # requests, each worth half of itself after SHARE_SECONDS
    shared_at: float = 0.0


class Holdings:
    """Which replica holds which keys, and how busy each is.

    >>> fleet = Holdings()
    >>> fleet.keep(["a", "b"])
    >>> fleet.note_pick("a", Ask([1, 2, 3]), now=0.0)
    >>> fleet.lengths([1, 2, 9], now=1.0)
    {'a': 2}
    """

    def __init__(self) -> None:
        self.replicas: dict[str, ReplicaRecord] = {}
        self._holders: dict[int, set[str]] = {}  # by reports
        self.picks: dict[int, dict[str, float]] = {}  # until when, by requests sent
        self.expiring: deque[tuple[int, str, float]] = deque()
        self.forks: OrderedDict[int, int] = OrderedDict()  # how many prompts parted behind a block
        self._ends: OrderedDict[int, int] = OrderedDict()  # how many prompts ended with a block

    def keep(self, names: Collection[str]) -> None:
        """Know these replicas and no others."""
        for name in names:
            self.replicas.setdefault(name, ReplicaRecord())
        for name in self.replicas.keys() - set(names):
            self._replace(name, frozenset())
            del self.replicas[name]

    def take_report(self, name: str, report: object, now: float) -> None:
        """Take a replica's report; fields that are missing or nonsense count as nothing."""
        facts = report if isinstance(report, dict) else {}
        replica = self.replicas.setdefault(name, ReplicaRecord())
        replica.load = _count(facts.get("running")) + _count(facts.get("waiting"))
        replica.saved = frozenset(unpack_keys(facts.get("saved")))
        self._replace(name, frozenset(unpack_keys(facts.get("keys"))))
        while replica.picks and replica.picks[0] <= now - REPORT_SECONDS:
            replica.picks.popleft()

    def _replace(self, name: str, keys: frozenset[int]) -> None:
        old = self.replicas[name].keys
        for key in old - keys:
            holders = self._holders[key]
            holders.discard(name)
            if not holders:
                del self._holders[key]
        for key in keys - old:
            self._holders.setdefault(key, set()).add(name)
        self.replicas[name].keys = keys

    def note_pick(self, name: str, ask: Ask, now: float, seconds: float = PICK_SECONDS) -> None:
        """Note that a request goes to a replica, which will hold its prefix."""
        replica = self.replicas.setdefault(name, ReplicaRecord())
        replica.picks.append(now)
        replica.share = self.share(name, now) + 1
        replica.shared_at = now
        self._note_fork(ask.keys, now)
        if ask.keys:
            _note(self._ends, ask.keys[-1])
        end = now + seconds
        # The next request of a conversation goes beyond this one's last block; others part from it earlier.
        for key in (*ask.keys[::PICK_STRIDE], *ask.keys[-1:]):
            self.picks.setdefault(key, {})[name] = end
            self.expiring.append((key, name, end))
        self._forget(now)

    def _note_fork(self, keys: Sequence[int], now: float) -> None:
        """Note the last block of a prompt that any replica holds, if it goes on differently from there."""
        held = next((n for n in range(len(keys), 0, -1) if self._is_held(keys[n - 1], now)), 0)
        if 0 < held < len(keys):
            _note(self.forks, keys[held - 1])

    def ends_prompt(self, key: int) -> bool:
        """Whether a prompt ended with this block, so that one that goes beyond it follows up.

        Its answer may be long, and no report may have told of it yet.
        """
        return key in self._ends

    def ends_many(self, key: int) -> bool:
        """Whether many prompts ended with this block, and differ at most by the few tokens behind it.

        They are repeated, or share a system prompt and are short: the turns of a conversation soon go on by
        a block.
        """
        return self._ends.get(key, 0) >= COMMON_ENDS

    def _is_held(self, key: int, now: float) -> bool:
        return key in self._holders or any(end > now for end in self.picks.get(key, {}).values())

    def is_common(self, key: int) -> bool:
        """Whether a block ends a prefix of many conversations, as a system prompt does.

        The turns of one conversation each go on behind a block of their own, and new conversations all part
        behind the same one.
        """
        return self.forks.get(key, 0) >= COMMON_FORKS

    def _forget(self, now: float) -> None:
        """Drop what has expired, and the oldest of what is too much."""
        while self.expiring and (self.expiring[0][2] <= now or len(self.expiring) > MAX_PICKS):
            key, name, end = self.expiring.popleft()
            ends = self.picks.get(key)
            if ends is not None and ends.get(name) == end:
                del ends[name]
                if not ends:
                    del self.picks[key]

    def lengths(self, keys: Sequence[int], now: float) -> dict[str, int]:
        """How many blocks of a text each replica holds; those that hold none are left out."""
        found: dict[str, int] = {}
        n_replicas = len(self.replicas)
        for n in range(len(keys), 0, -1):
            key = keys[n - 1]
            names: Iterable[str] = self._holders.get(key, ())
            for name in names:
                found.setdefault(name, n)
            for name, end in self.picks.get(key, {}).items():
                if end > now and name in self.replicas:
                    found.setdefault(name, n)
            if len(found) == n_replicas:
                break
        return found

    def keeper(self, saved: int) -> str | None:
        """The replica that has something saved."""
        return next((name for name, replica in self.replicas.items() if saved in replica.saved), None)

    def load(self, name: str, now: float) -> int:
        """Requests that a replica has, by its report and by what was sent to it since."""
        replica = self.replicas[name]
        while replica.picks and replica.picks[0] <= now - LOAD_SECONDS:
            replica.picks.popleft()
        return replica.load + len(replica.picks)

    def share(self, name: str, now: float) -> float:
        """Requests that a replica got lately: decides between replicas that are equally busy."""
        replica = self.replicas[name]
        return float(replica.share * 0.5 ** max(0.0, (now - replica.shared_at) / SHARE_SECONDS))


def _note(blocks: OrderedDict[int, int], key: int) -> None:
    """Count a block once more; the ones that were counted longest ago are forgotten."""
    blocks[key] = blocks.pop(key, 0) + 1
    if len(blocks) > MAX_BLOCKS_NOTED:
        blocks.popitem(last=False)


def _count(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value < 1 << 31 else 0


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
            raise wrong_value("margin", self.margin, "from 0 to 10000 requests")
        if not 0 <= self.ratio <= 100:
            raise wrong_value("ratio", self.ratio, "from 0 to 100")
        if not 0 < self.min_share <= 1:
            raise wrong_value("min_share", self.min_share, "above 0, at most 1")

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
