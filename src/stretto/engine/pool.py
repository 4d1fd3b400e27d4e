"""The pool: the table of cells, the tracks that use them, and the prefix cache. It computes nothing.

A sequence of cells belongs to a track, is parked (a closed sequence stays in the prefix cache until space is
needed), or is borrowed (`BorrowedIds`). The pool moves cells between these: it forks and closes tracks,
shares computed prefixes, parks and evicts. Callers hold its lock, except to make a track.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import count, islice
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np

from stretto.backends.base import Backend
from stretto.cache.cells import Cells
from stretto.cache.items import ImageToken
from stretto.cache.prefix import CacheKey, PrefixCache
from stretto.cache.radix import common
from stretto.cache.slots import Slots
from stretto.engine.metrics import Metrics
from stretto.engine.track import Checkpoints, Track
from stretto.engine.types import EditMode
from stretto.errors import CacheFull
from stretto.hardware import fork_safety
from stretto.sampling.sampler import RandomStream

# Cells that are used for a while under ids of their own, and what an exception interrupted.
#
# A sequence of cells has a track, is parked, or is borrowed by something: a file that is being written, the
# lanes of parallel tokens. Cells that none of these has are free; the runner finds them when it tidies up.


class Borrower:
    """An owner of borrowed ids, where there is no other."""


class BorrowedIds:
    """Ids by their owners."""

    def __init__(self, cells: Cells, numbers: Iterator[int]) -> None:
        self._cells = cells
        self._numbers = numbers  # that no sequence has had
        self._owners: WeakKeyDictionary[object, set[int]] = WeakKeyDictionary()

    def take(self, owner: object) -> int:
        """An id for cells that `owner` uses for a while; they are free once it is gone."""
        sequence = next(self._numbers)
        self._owners.setdefault(owner, set()).add(sequence)
        return sequence

    def take_several(self, owner: object, n: int) -> list[int]:
        """`take` n times."""
        several = list(islice(self._numbers, n))
        self._owners.setdefault(owner, set()).update(several)
        return several

    def give_back(self, owner: object, sequences: Iterable[int]) -> None:
        """Free the cells of borrowed ids."""
        several = list(sequences)
        self._cells.remove_each(several)
        self._owners.get(owner, set()).difference_update(several)

    def ids(self) -> set[int]:
        """All of them."""
        return set().union(*self._owners.values())


def recover(cells: Cells, prefixes: PrefixCache) -> None:
    """Undo what an exception interrupted in the cache, if any did."""
    slots = cells.slots
    is_broken = prefixes.is_interrupted or (slots is not None and slots.is_interrupted)
    if is_broken or cells.is_interrupted:
        cells.repair(anyway=True)
        prefixes.repair()


# The open tracks of a runner, which threads that make requests add to while another one steps.


class OpenTracks(WeakValueDictionary[int, Track]):
    """Tracks by id. `values` iterates over a copy, so that adding one needs no lock."""

    def values(self) -> Iterator[Track]:  # type: ignore[override]  # as in the class it extends
        """The tracks that are open now."""
        return iter([track for reference in self.valuerefs() if (track := reference()) is not None])


FIRST_ID = 1_000_000  # of the engine's own sequences; ids below are for batches made by hand


@dataclass(frozen=True)
class Match:
    """A computed prefix that a track can share: the sequence that has it, and how many tokens.

    With recurrent layers it ends at a state, and more tokens than that may be the same.
    """

    source: int | None = None
    n: int = 0
    parked: bool = False  # in the prefix cache, and so in use only once it is shared
    n_common: int = 0  # tokens that are the same, with or without a state behind them
    n_other: int = 0  # tokens of the one that they are the same in


MIN_COMMON_TOKENS = 8  # with the nearest cached prompt, so that it is said where one leaves it
MIN_LOST_TOKENS = 32  # that might have been shared behind that place
STEPS_OF_ROOM = 8  # that parked sequences are evicted for at a time, where all requests just decode
NO_MATCH = Match()
NO_KEY = CacheKey(())


class CellPool:
    """The cells of a backend, and what has them."""

    def __init__(self, backend: Backend, prefix_cache: bool, checkpoint_bytes: int) -> None:
        spec = backend.spec
        self.slots: Slots | None = None  # of recurrent layers, if there are any
        if backend.n_slots:
            kind = spec.recurrent or "recurrent"
            self.slots = Slots(backend.n_slots, checkpoint_bytes // max(1, backend.slot_bytes), kind)
        self.cells = Cells(backend.n_cells, self.slots)
        self.prefixes = PrefixCache(self.cells)
        self.prefix_cache = prefix_cache
        self.context_length = min(spec.context_length, backend.n_cells)
        self.lock = fork_safety.recursive_lock()
        self.metrics = Metrics()
        self.tracks = OpenTracks()
        self.orphans: deque[tuple[int, CacheKey, int | None]] = deque()  # of handles dropped without closing
        self.closed = False
        self.weights = ""  # their fingerprint, once they were replaced
        self.on_park: Callable[[], None] | None = None  # called when a sequence was parked
        self._ids = count(FIRST_ID)
        self.borrowed = BorrowedIds(self.cells, self._ids)

    # -- tracks --

    def new_id(self) -> int:
        """An id that no sequence has had."""
        return next(self._ids)

    def new_track(
        self,
        tokens: list[int],
        random: RandomStream,
        salt: str | None = None,
        edits: EditMode = "recompute",
    ) -> Track:
        """A track with checked tokens, none of them computed yet; it shares cells with those of its salt.

        It waits for no lock, so that requests are made while another thread steps.
        """
        track = self._bare_track(random)
        track.edits = edits
        if salt:
            track.domain = track.domain._replace(salt=salt)
        track.extend(tokens)
        track.n_prompt = len(tokens)
        self.tracks[track.id] = track
        return track

    def fork(self, track: Track, random: RandomStream | None = None) -> Track:
        """Another track with the same past, all of it computed: they share its cells."""
        twin = self._bare_track(random or track.random.fork())
        twin.copy_from(track)
        self.tracks[twin.id] = twin
        return twin

    def branch(
        self, track: Track, n: int, start: int, tokens: list[int], ahead: Track | None = None
    ) -> Track:
        """A track that shares the first n tokens' cells with another, and has others from `start` on.

        Where these have been computed behind the same text already, it shares their cells too; `ahead` is an
        earlier branch at this place, for texts that are found by nobody else.
        """
        twin = self._bare_track(RandomStream(0))
        twin.domain, twin.mix = track.domain, track.mix
        twin.tokens = [*track.tokens[:n], *tokens]
        twin.has_images = ImageToken in map(type, twin.tokens)
        twin.exact = None if track.exact is None or track.exact >= n else track.exact
        match = self.lookup(twin) if n == start and twin.exact is None else None
        if match is not None and match.n > n:
            self.share(twin, match)
        else:
            self.cells.copy(track.id, twin.id, 0, start)
            if self.cells.end(twin.id) != start:  # behind a hole
                twin.resume, twin.exact = start, n if twin.exact is None else twin.exact
            if ahead is not None and np.array_equal(self.cells.view(ahead.id)[:n], self.cells.view(twin.id)):
                n_common = common(ahead.tokens[n : ahead.n_placed], tokens[:-1])
                if self.cells.copy(ahead.id, twin.id, start, start + n_common):
                    twin.resume = None
        self.tracks[twin.id] = twin
        return twin

    def _bare_track(self, random: RandomStream) -> Track:
        track = Track(self.cells, self.new_id(), self.context_length, random)
        track.domain = track.domain._replace(weights=self.weights)
        if self.slots is not None and self.slots.max_checkpoints and self.prefix_cache:
            track.checkpoints = Checkpoints(self.slots, track.id)
        return track

    def close_track(self, track: Track, park: bool = True) -> None:
        """Park the cells of a track, or free them at once; closing twice is fine."""
        if not track.closed:
            track.closed = True
            track.running = False
            track.logits = None
            self.tracks.pop(track.id, None)
            if not self.closed:
                track.end_draft()
                self.park(track.id, track.cache_key if park else NO_KEY, track.exact)

    def release(self, track: Track) -> None:
        """Give a track's cells up and keep its tokens: those that were not parked are computed again."""
        track.end_draft()
        self.park(track.id, track.cache_key, track.exact, keep_id=True)
        track.preempted = track.running
        track.resume = track.logits = track.exact = None
        track.step_tokens = 1

    def rollback(self, track: Track, n_tokens: int) -> None:
        """Keep a track's first tokens only."""
        n_gone = len(track) - n_tokens
        if n_gone > 0:
            self.rollback_cells(track, n_tokens)
            del track.tokens[n_tokens:]

    def rollback_cells(self, track: Track, n_tokens: int) -> None:
        """Keep the cells of a track's first tokens only; the others are pending."""
        track.end_draft()
        if track.n_placed > n_tokens:
            self.cells.remove_cells(track.id, self.cells.view(track.id)[n_tokens:])
        track.logits = None

    # -- the prefix cache --

    def lookup(self, track: Track) -> Match | None:
        """The longest computed prefix that a track can share, which may be empty; changes nothing.

        Its last token is left out, so that there is something to compute logits from. None for a track that
        takes no cells: it has some, or stands at other positions than 0, 1, 2, …
        """
        if not (
            self.prefix_cache and not track.n_placed and len(track) >= 2 and track.position == len(track)
        ):
            return None
        if track.domain.weights != self.weights:  # it was made before they were replaced
            track.domain = track.domain._replace(weights=self.weights)
        items, slots = track.tokens[:-1], self.slots
        source, n = self.prefixes.find(items, track.domain)
        n_common, parked = n, True
        n_other = 0 if source is None else self.prefixes.length(source)
        if slots is not None:
            source, n = self.prefixes.find_state(items, track.domain)
        for other in self.tracks.values():
            if other is not track and other.domain == track.domain:
                shared = common(other.exact_tokens(), items)
                if shared > n_common:
                    n_common, n_other = shared, len(other.exact_tokens())
                if slots is not None:
                    shared = slots.nearest(other.id, shared)
                if shared > n:
                    source, n, parked = other.id, shared, False
        return Match(source, n, parked, n_common, n_other) if n_common else NO_MATCH

    def share(self, track: Track, match: Match) -> None:
        """Give a track the cells of a match that was just looked up for it."""
        n = match.n
        self.prefixes.lookups += 1
        if match.source is not None:
            if match.parked:
                self.prefixes.touch(match.source)
            self.cells.copy(match.source, track.id, 0, n)
            self.prefixes.hits += 1
            self.prefixes.tokens_saved += n
            self.metrics.cached_tokens += n
            if track.domain.is_edited and track.edits != "recompute":
                track.exact, track.edit_mode = 0, track.edits
        if track.checkpoints is not None:
            track.checkpoints.want(match.n_common)  # others may part from it there too
        if not track.preempted:
            track.n_cached = max(0, n - track.n_edited)
            n_lost = min(len(track) - 1, match.n_other) - match.n_common
            is_told = match.n_common >= MIN_COMMON_TOKENS and n_lost >= MIN_LOST_TOKENS
            if not track.domain.is_edited:
                track.differs_at = match.n_common if is_told else None

    def reuse(self, track: Track) -> None:
        """Let a track without cells share the longest prefix that has been computed already."""
        match = self.lookup(track)
        if match is not None:
            self.share(track, match)

    def share_with(self, source: Track, track: Track) -> None:
        """Give a track without cells those of its tokens that another one begins with too."""
        self.cells.copy(source.id, track.id, 0, self.n_shareable(source, track))

    def n_shareable(self, source: Track, track: Track) -> int:
        """How many tokens a track without cells can share with another one."""
        n = common(source.exact_tokens(), track.tokens[:-1])
        return n if self.slots is None else self.slots.nearest(source.id, n)

    def park(self, sequence: int, key: CacheKey, exact: int | None, keep_id: bool = False) -> None:
        """Keep a sequence's cells in the prefix cache until space is needed."""
        self.recover()
        n = min(len(key.items), self.cells.count(sequence))
        n = n if exact is None or key.domain.is_edited else min(n, exact)
        if self.slots is not None:
            n = self.slots.nearest(sequence, n)
        is_useless = bool(key.domain.private) and not keep_id  # nothing will ever ask for it
        if not self.prefix_cache or not n or is_useless:
            self.cells.remove(sequence)
            return
        parked = sequence
        if keep_id:  # the track goes on; its cells go to an id of their own
            parked = self.new_id()
            self.cells.copy(sequence, parked, 0, n)
            self.cells.remove(sequence)
        if self.slots is not None and (slot := self.slots.state(parked)) is not None:
            self.slots.touch(slot)
        self.prefixes.park(parked, key.items[:n], domain=key.domain)
        self.prefixes.trim_states()
        if self.on_park is not None:
            self.on_park()

    def make_room(self, wanted: int) -> None:
        """See that so many cells are free: parked sequences are evicted, then `CacheFull` is raised."""
        self.recover()
        if wanted <= self.cells.n_free and not self.orphans:
            return
        self.tidy()
        if wanted > self.cells.n_free and not self.prefixes.evict(wanted):
            raise self.cache_full(wanted)

    def make_room_for_steps(self, n_rows: int) -> None:
        """See that steps with so many rows find free cells for a while, if parked sequences have any."""
        if n_rows > self.cells.n_free:
            self.tidy()
            self.prefixes.evict(n_rows * STEPS_OF_ROOM)

    def n_available(self, claimed: Iterable[Match] = ()) -> int:
        """How many cells are free or can be evicted, less those of matches that are about to be shared."""
        taken = [self.cells.view(match.source)[: match.n] for match in claimed if match.source is not None]
        return self.cells.n_free + self.prefixes.n_evictable(taken)

    @property
    def n_held(self) -> int:
        """How many cells are in use and cannot be evicted."""
        return self.cells.n_used - self.prefixes.n_evictable()

    def tidy(self) -> None:
        """Park the cells of handles that were dropped without being closed; free those that nobody has."""
        self.recover()
        while self.orphans:
            self.park(*self.orphans.popleft())
        known = self.borrowed.ids()
        for sequence in self.cells.sequences:
            # An exception came while it was on its way from one owner to the next.
            if sequence >= FIRST_ID and not (
                sequence in self.tracks or sequence in self.prefixes or sequence in known
            ):
                self.cells.remove(sequence)

    def recover(self) -> None:
        """Undo what an exception interrupted, if any did."""
        recover(self.cells, self.prefixes)

    def cache_full(self, wanted: int, claimed: Iterable[Match] = (), wanted_slots: int = 0) -> CacheFull:
        """The error that says what holds the cells, or the slots if those are wanted, and what to do."""
        if wanted_slots and self.slots is not None:
            return self.slots.full(wanted_slots, self.slots.n_free + len(self.slots.checkpoints()))
        cells, free = self.cells, self.n_available(claimed)
        held = sorted(((cells.count(i), i) for i in cells.sequences), reverse=True)
        largest = ", ".join(f"sequence {i} with {n}" for n, i in held[:3])
        pinned = self.prefixes.stats().pinned
        return CacheFull(
            f"{wanted} cells are needed and {free} of {len(cells)} are free; {len(cells) - free} are held "
            f"by {len(held)} sequences ({pinned} of them pinned), the largest are {largest}; close "
            "sequences, or load the model with more cells",
            n_needed=wanted,
            n_free=free,
        )
