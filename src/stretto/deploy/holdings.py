"""What a router knows of its replicas: their last reports, and where it has sent requests since.

No Ray here: the simulation of `benchmarks/fleet.py` uses it as the router does. Times are given, in seconds.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from stretto.deploy.prefixes import unpacked

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
    has to remember them by itself. `saved` is the key of something that one replica alone has.
    """

    keys: Sequence[int] = ()
    session: str = ""
    saved: int | None = None
    is_exact: bool = True


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
    >>> fleet.picked("a", Ask([1, 2, 3]), now=0.0)
    >>> fleet.lengths([1, 2, 9], now=1.0)
    {'a': 2}
    """

    def __init__(self) -> None:
        self.replicas: dict[str, ReplicaRecord] = {}
        self._holders: dict[int, set[str]] = {}  # by reports
        self._picks: dict[int, dict[str, float]] = {}  # until when, by requests sent
        self._expiring: deque[tuple[int, str, float]] = deque()
        self._forks: OrderedDict[int, int] = OrderedDict()  # how many prompts parted behind a block
        self._ends: OrderedDict[int, int] = OrderedDict()  # how many prompts ended with a block

    def keep(self, names: Collection[str]) -> None:
        """Know these replicas and no others."""
        for name in names:
            self.replicas.setdefault(name, ReplicaRecord())
        for name in self.replicas.keys() - set(names):
            self._replace(name, frozenset())
            del self.replicas[name]

    def reported(self, name: str, report: object, now: float) -> None:
        """Take a replica's report; fields that are missing or nonsense count as nothing."""
        facts = report if isinstance(report, dict) else {}
        replica = self.replicas.setdefault(name, ReplicaRecord())
        replica.load = _count(facts.get("running")) + _count(facts.get("waiting"))
        replica.saved = frozenset(unpacked(facts.get("saved")))
        self._replace(name, frozenset(unpacked(facts.get("keys"))))
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

    def picked(self, name: str, ask: Ask, now: float, seconds: float = PICK_SECONDS) -> None:
        """Note that a request goes to a replica, which will hold its prefix."""
        replica = self.replicas.setdefault(name, ReplicaRecord())
        replica.picks.append(now)
        replica.share = self._share(replica, now) + 1
        replica.shared_at = now
        self._note_fork(ask.keys, now)
        if ask.keys:
            _note(self._ends, ask.keys[-1])
        end = now + seconds
        # The next request of a conversation goes beyond this one's last block; others part from it earlier.
        for key in (*ask.keys[::PICK_STRIDE], *ask.keys[-1:]):
            self._picks.setdefault(key, {})[name] = end
            self._expiring.append((key, name, end))
        self._forget(now)

    def _note_fork(self, keys: Sequence[int], now: float) -> None:
        """Note the last block of a prompt that any replica holds, if it goes on differently from there."""
        held = next((n for n in range(len(keys), 0, -1) if self._is_held(keys[n - 1], now)), 0)
        if 0 < held < len(keys):
            _note(self._forks, keys[held - 1])

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
        return key in self._holders or any(end > now for end in self._picks.get(key, {}).values())

    def is_common(self, key: int) -> bool:
        """Whether a block ends a prefix of many conversations, as a system prompt does.

        The turns of one conversation each go on behind a block of their own, and new conversations all part
        behind the same one.
        """
        return self._forks.get(key, 0) >= COMMON_FORKS

    def _forget(self, now: float) -> None:
        """Drop what has expired, and the oldest of what is too much."""
        while self._expiring and (self._expiring[0][2] <= now or len(self._expiring) > MAX_PICKS):
            key, name, end = self._expiring.popleft()
            ends = self._picks.get(key)
            if ends is not None and ends.get(name) == end:
                del ends[name]
                if not ends:
                    del self._picks[key]

    def lengths(self, keys: Sequence[int], now: float) -> dict[str, int]:
        """How many blocks of a text each replica holds; those that hold none are left out."""
        found: dict[str, int] = {}
        n_replicas = len(self.replicas)
        for n in range(len(keys), 0, -1):
            key = keys[n - 1]
            names: Iterable[str] = self._holders.get(key, ())
            for name in names:
                found.setdefault(name, n)
            for name, end in self._picks.get(key, {}).items():
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
        return self._share(self.replicas[name], now)

    def _share(self, replica: ReplicaRecord, now: float) -> float:
        return float(replica.share * 0.5 ** max(0.0, (now - replica.shared_at) / SHARE_SECONDS))


def _note(blocks: OrderedDict[int, int], key: int) -> None:
    """Count a block once more; the ones that were counted longest ago are forgotten."""
    blocks[key] = blocks.pop(key, 0) + 1
    if len(blocks) > MAX_BLOCKS_NOTED:
        blocks.popitem(last=False)


def _count(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value < 1 << 31 else 0
