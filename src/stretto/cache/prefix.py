"""The prefix cache: cells of parked (finished or closed) sequences stay cached until space is needed.

    prefixes.park(7, tokens)                # sequence 7 is done
    source, n = prefixes.match(prompt)      # the parked sequence with the longest common prefix, its length
    cells.copy(source, 9, 0, n)             # sequence 9 starts from there; no tensor moves

A parked sequence is found by its items, one for each cell, compared one by one: there are no false hits.
Its items are at positions 0, 1, 2, …; edited sequences are not parked.

Sequences share within their domain only: one with another salt or adapter finds nothing of theirs.

With recurrent layers a sequence can be continued from its states only, so a match ends at one of them, and a
parked sequence ends at its last one. States are evicted like cells, the least recently used first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence, ValuesView
from dataclasses import dataclass
from functools import wraps
from typing import Concatenate, NamedTuple, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from stretto.cache.cells import Cells
from stretto.cache.radix import Radix, common

Ints = NDArray[np.int32]

MIN_EVICTED_CELLS = 64  # freed at a time, so that not every step has to evict one more


class Domain(NamedTuple):
    """A part of the prefix cache: sequences share cells with those of the same domain, and no others."""

    adapter: str | None = None  # that K/V were computed with
    salt: str | None = None  # `cache_salt` of a request
    private: int = 0  # id of a sequence that shares with its forks alone
    is_edited: bool = False  # K/V may be those of a text that was edited in place
    weights: str = ""  # fingerprint of the model's weights, where they are no longer those of its file

    @property
    def is_common(self) -> bool:
        """Whether any prompt of its salt and adapter may share its cells."""
        return not (self.private or self.is_edited)


COMMON = Domain()  # of everything that has no salt


class CacheKey(NamedTuple):
    """Key of a sequence: an item for each cell, and its domain."""

    items: Sequence[object]
    domain: Domain = COMMON


@dataclass
class Parked:
    """A parked sequence: its id in the table of cells, its key, and how often it is pinned."""

    id: int
    items: tuple[object, ...]
    pins: int = 0
    domain: Domain = COMMON


@dataclass(frozen=True)
class CacheStats:
    """Occupancy and hit counts of the prefix cache.

    `cells` = `free` + `held` (by sequences in use or pinned) + `parked` (evicted when space is needed).
    `hits` of `lookups` prompts found a cached prefix; `tokens_saved` is the sum of their lengths.
    """

    cells: int
    free: int
    held: int
    parked: int
    sequences: int  # that are parked
    pinned: int  # of those
    lookups: int
    hits: int
    tokens_saved: int
    evictions: int  # parked sequences that were dropped or cut
    slots: int = 0  # of states, if there are recurrent layers: free + held + checkpoints
    slots_free: int = 0
    slots_held: int = 0  # states of sequences in use or pinned
    checkpoints: int = 0  # evicted when space is needed
    slot_bytes: int = 0  # of each


Args = ParamSpec("Args")
Result = TypeVar("Result")


def _change(
    method: Callable[Concatenate[PrefixCache, Args], Result],
) -> Callable[Concatenate[PrefixCache, Args], Result]:
    """A method that leaves a note if an exception ends it."""

    @wraps(method)
    def noted(self: PrefixCache, /, *args: Args.args, **options: Args.kwargs) -> Result:
        outer, self.is_interrupted = self.is_interrupted, True
        self._evictable = None
        result = method(self, *args, **options)
        self.is_interrupted = outer
        return result

    return noted


class PrefixCache:
    """The parked sequences of a table of cells, least recently used first."""

    def __init__(self, cells: Cells) -> None:
        self._cells = cells
        self._slots = cells.slots
        self.trees: dict[Domain, Radix[Parked]] = {}  # those that are not empty
        self._entries: OrderedDict[int, Parked] = OrderedDict()
        self.lookups = self.hits = self.tokens_saved = self.evictions = 0
        self.is_interrupted = False  # in a change that came to no end
        self.on_evict: Callable[[Parked], None] | None = None  # called before a sequence loses cells
        self._evictable: tuple[int, NDArray[np.bool_]] | None = (
            None  # a version of the table, and which cells
        )

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, sequence: int) -> bool:
        return sequence in self._entries

    def entries(self) -> ValuesView[Parked]:
        """The parked sequences, least recently used first."""
        return self._entries.values()

    def find_entry(self, sequence: int) -> Parked | None:
        """The parked sequence of an id."""
        return self._entries.get(sequence)

    @_change
    def park(self, sequence: int, items: Sequence[object], *, pins: int = 0, domain: Domain = COMMON) -> int:
        """Take over a sequence's first len(items) cells, one for each item; the others become free.

        Returns the id of the parked sequence that has them now: an older one's, if it had the same items.
        """
        key, tree = tuple(items), self.trees.get(domain) or Radix()
        self._cells.remove(sequence, len(key))
        if self._slots is not None:
            key = key[: self._cells.count(sequence)]  # back to its last state
        *shorter, last = (None, *tree.prefixes(key))
        same = last if last is not None and len(last.items) == len(key) else None
        n, other = tree.longest(key)
        if same is None and not pins and n == len(key):
            same = other  # a longer one
        if same is not None:
            same.pins += pins
            self._entries.move_to_end(same.id)
            self._keep_states(sequence, same.id, same.pins)
            self._cells.remove(sequence)
            return same.id
        for entry in (*shorter, last):
            if entry is not None and not entry.pins:
                self._keep_states(entry.id, sequence, pins)
                self.drop(entry)
        if key:
            self._keep_states(sequence, sequence, pins)
            entry = Parked(sequence, key, pins, domain)
            tree.insert(key, entry)
            self.trees[domain] = tree
            self._entries[sequence] = entry
        return sequence

    def find(self, items: Sequence[object], domain: Domain = COMMON) -> tuple[int | None, int]:
        """The parked sequence that shares the longest prefix with `items`, and how many items."""
        tree = self.trees.get(domain)
        n, entry = (0, None) if tree is None else tree.longest(items)
        return (None, 0) if entry is None else (entry.id, n)

    def length(self, sequence: int) -> int:
        """How many items a parked sequence has."""
        return len(self._entries[sequence].items)

    def find_state(self, items: Sequence[object], domain: Domain = COMMON) -> tuple[int | None, int]:
        """The parked sequence with the latest state that a text with these items can go on from."""
        source, best, wanted = None, 0, tuple(items)
        if self._slots is not None:
            for entry in self._entries.values():
                if entry.domain == domain and self._slots.position(entry.id) > best:
                    n = self._slots.nearest(entry.id, common(entry.items, wanted))
                    if n > best:
                        source, best = entry.id, n
        return source, best

    def touch(self, sequence: int) -> None:
        """Note that a parked sequence was used: it is evicted last."""
        self._entries.move_to_end(sequence)

    def match(self, items: Sequence[object], domain: Domain = COMMON) -> tuple[int | None, int]:
        """`find`, and `touch` the sequence."""
        source, n = self.find(items, domain)
        if source is not None:
            self.touch(source)
        return source, n

    @_change
    def drop(self, entry: Parked) -> None:
        """Remove a parked sequence and free its cells."""
        self._forget(entry)
        self._cells.remove(entry.id)

    def _forget(self, entry: Parked) -> None:
        """Take a sequence out of the tree; its cells stay."""
        tree = self.trees[entry.domain]
        tree.remove(entry.items)
        if not tree:
            del self.trees[entry.domain]  # salts come and go
        del self._entries[entry.id]

    @_change
    def unpin(self, sequence: int) -> None:
        """Undo one pin; without pins the sequence can be evicted. No effect if it is not parked."""
        entry = self._entries.get(sequence)
        if entry is not None and entry.pins:
            entry.pins -= 1
            if not entry.pins:  # it may be a prefix of a longer one
                self._forget(entry)
                self.park(sequence, entry.items, domain=entry.domain)

    @_change
    def evict(self, wanted: int) -> bool:
        """Evict parked sequences until `wanted` cells are free; return whether they are. Pinned ones stay."""
        for entry in list(self._entries.values()):
            missing = wanted - self._cells.n_free
            if missing <= 0:
                break
            if not entry.pins and entry.id in self._entries:
                self.evictions += 1
                if self.on_evict is not None:
                    self.on_evict(entry)
                self._shrink(entry, max(missing, MIN_EVICTED_CELLS))
        return self._cells.n_free >= wanted

    def _shrink(self, entry: Parked, n: int) -> None:
        """Cut a parked sequence's end so that n cells become free; drop it if it has no more than n."""
        view = self._cells.view(entry.id)
        own = np.flatnonzero(~self._cells.is_shared(view))
        if len(own) <= n:
            self.drop(entry)
            return
        self._cut(entry, own[-n])

    # -- states of recurrent layers --

    @_change
    def evict_states(self, wanted: int) -> bool:
        """Evict checkpoints until `wanted` slots are free; return whether they are."""
        slots = self._slots
        while slots is not None and slots.n_free < wanted:
            found = slots.checkpoints()
            if not found:
                return False
            self.forget_state(found[0])
        return True

    @_change
    def trim_states(self) -> None:
        """Evict checkpoints beyond their limit."""
        if self._slots is not None and self._slots.has_changed:
            while len(found := self._slots.checkpoints()) > self._slots.max_checkpoints:
                self.forget_state(found[0])
            self._slots.has_changed = False

    @_change
    def forget_state(self, slot: int, keep: Collection[int] = ()) -> None:
        """Take all sequences but `keep` out of a slot; parked ones are cut to the state before it."""
        assert self._slots is not None
        self.evictions += 1
        for sequence in self._slots.members[slot] if self.on_evict is not None else ():
            if sequence in self._entries and self.on_evict is not None:
                self.on_evict(self._entries[sequence])
        for sequence in self._slots.evict(slot, keep):
            entry = self._entries.get(sequence)
            if entry is not None:
                self._cut(entry, self._slots.position(sequence))

    def _keep_states(self, source: int, target: int, pins: int) -> None:
        """Let a parked sequence have the states of one that it begins with; pinned ones are not evicted."""
        if self._slots is not None:
            self._slots.copy(source, target)
            self._slots.has_changed = True
            (self._slots.parked.discard if pins else self._slots.parked.add)(target)

    def _cut(self, entry: Parked, n: int) -> None:
        """Keep the first n items of a parked sequence, at the least recently used place."""
        self._forget(entry)
        self.park(entry.id, entry.items[:n], domain=entry.domain)
        if entry.id in self._entries:
            self._entries.move_to_end(entry.id, last=False)

    def n_evictable(self, claimed: Sequence[Ints] = ()) -> int:
        """How many cells `evict` could free, without those that are claimed."""
        version = self._cells.version
        if self._evictable is None or self._evictable[0] != version:
            counts = np.zeros(len(self._cells), np.int32)  # of unpinned parked sequences, for each cell
            for entry in self._entries.values():
                if not entry.pins:
                    counts[self._cells.view(entry.id)] += 1
            self._evictable = version, (counts > 0) & (counts == self._cells.shares)
        found = self._evictable[1]
        if claimed:
            found = found.copy()
            for cells in claimed:
                found[cells] = False
        return int(np.count_nonzero(found))

    @_change
    def clear(self) -> None:
        """Remove every sequence that is not pinned."""
        for entry in [entry for entry in self._entries.values() if not entry.pins]:
            self.drop(entry)

    def repair(self) -> None:
        """Cut parked sequences to the cells that they have, after the table was repaired; find them anew."""
        self.trees, self._evictable = {}, None
        for entry in list(self._entries.values()):
            n = min(len(entry.items), self._cells.count(entry.id))
            tree = self.trees.get(entry.domain)
            _, other = (0, None) if tree is None else tree.longest(entry.items[:n])
            if not n or (other is not None and other.items == entry.items[:n]):
                del self._entries[entry.id]
                self._cells.remove(entry.id)
                continue
            entry.items = entry.items[:n]
            self._cells.remove(entry.id, n)
            self.trees.setdefault(entry.domain, Radix()).insert(entry.items, entry)
        if self._slots is not None:
            unpinned = {entry.id for entry in self._entries.values() if not entry.pins}
            self._slots.parked = unpinned & self._slots.views.keys()
        self.is_interrupted = False

    def stats(self) -> CacheStats:
        """Counts; see `CacheStats`."""
        parked = self.n_evictable()
        return CacheStats(
            cells=len(self._cells),
            free=self._cells.n_free,
            held=self._cells.n_used - parked,
            parked=parked,
            sequences=len(self._entries),
            pinned=sum(entry.pins > 0 for entry in self._entries.values()),
            lookups=self.lookups,
            hits=self.hits,
            tokens_saved=self.tokens_saved,
            evictions=self.evictions,
            **self._slot_stats(),
        )

    def _slot_stats(self) -> dict[str, int]:
        slots = self._slots
        if slots is None:
            return {}
        n = len(slots.checkpoints())
        held = slots.n_used - n
        return {"slots": slots.n_slots, "slots_free": slots.n_free, "slots_held": held, "checkpoints": n}
