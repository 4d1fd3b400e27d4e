"""The runner: a backend, its cells and its prefix cache. It computes tracks and knows no request.

Everything that changes cells goes through it, under its lock: passes over pending tokens, forks, shifts, the
reuse of cached prefixes, parking (closed sequences stay in the prefix cache) and eviction.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from itertools import count
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from stretto import forking
from stretto.backends.base import Activates, Backend, Batch, Decoding
from stretto.cache.cells import Cells
from stretto.cache.items import Images, Pixels
from stretto.cache.prefix import CacheKey, Domain, PrefixCache
from stretto.cache.radix import common
from stretto.cache.slots import Slots
from stretto.engine.adapters import Adapters
from stretto.engine.borrowed import Borrowed, recover
from stretto.engine.checkpoints import Checkpoints
from stretto.engine.history import History
from stretto.engine.images import REMEDY
from stretto.engine.metrics import Metrics
from stretto.engine.states import States
from stretto.engine.tokens import checked_tokens
from stretto.engine.track import Rows, Source, Track, host_rows
from stretto.errors import CacheFull, InvalidRequest
from stretto.sampling.rng import RandomStream
from stretto.weights.mapped import GuardedMap, broken_mappings, check_maps

Floats = NDArray[np.float32]
Work = tuple[Source, int]  # so many pending tokens of a source

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


NO_MATCH = Match()
NO_KEY = CacheKey(())


class Runner:
    """A backend with its cells, and the tracks that use them."""

    def __init__(
        self, backend: Backend, prefix_cache: bool = True, chunk: int = 512, checkpoint_bytes: int = 0
    ) -> None:
        self.backend = backend
        self.spec = backend.spec
        self.slots: Slots | None = None  # of recurrent layers, if there are any
        if backend.n_slots:
            kind = self.spec.recurrent or "recurrent"
            self.slots = Slots(backend.n_slots, checkpoint_bytes // max(1, backend.slot_bytes), kind)
        self.cells = Cells(backend.n_cells, self.slots)
        self.prefixes = PrefixCache(self.cells)
        self.states = None if self.slots is None else States(backend, self.slots, self.prefixes)
        self.prefix_cache = prefix_cache
        self.context_length = min(self.spec.context_length, backend.n_cells)
        self.chunk = chunk  # tokens in one pass, at most
        self.lock = forking.recursive_lock()
        self.metrics = Metrics()
        self.history = History(self.metrics)
        self.tracks: WeakValueDictionary[int, Track] = WeakValueDictionary()  # those that are open
        self.adapters = Adapters(backend, self.tracks)
        self.orphans: deque[tuple[int, CacheKey, int | None]] = deque()  # of handles dropped without closing
        self.images: Images | None = None  # makes tokens of images, if the model has a vision encoder
        self.maps: Collection[GuardedMap] = ()  # files that stay mapped
        self._n_broken = 0
        self.closed = False
        self._is_forked = False
        self._ids = count(FIRST_ID)
        self.borrowed = Borrowed(self.cells, self._ids)

    # -- tracks --

    def new_id(self) -> int:
        """An id that no sequence has had."""
        return next(self._ids)

    def new_track(self, tokens: list[int], random: RandomStream, salt: str | None = None) -> Track:
        """A track with checked tokens, none of them computed yet; it shares cells with those of its salt."""
        track = self._bare_track(random)
        if salt:
            track.domain = Domain(salt=salt)
        track.extend(tokens)
        track.n_prompt = len(tokens)
        with self.lock:
            self.tracks[track.id] = track
        return track

    def fork(self, track: Track, random: RandomStream | None = None) -> Track:
        """Another track with the same past, all of it computed: they share its cells."""
        twin = self._bare_track(random or track.random.fork())
        twin.copy_from(track)
        self.tracks[twin.id] = twin
        return twin

    def _bare_track(self, random: RandomStream) -> Track:
        track = Track(self.cells, self.new_id(), self.context_length, random)
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
            track.end_draft()
            if track.n_placed > n_tokens:
                self.cells.remove_cells(track.id, self.cells.view(track.id)[n_tokens:])
            del track.tokens[n_tokens:]
            track.logits = None

    # -- passes --

    def compute(self, tracks: Iterable[Track]) -> None:
        """Compute all pending tokens of some tracks, in as few passes as the chunk size allows."""
        several = list(tracks)
        if len(several) == 1 and several[0].at_end:
            self.decode(several)
            return
        for track in several:
            self.reuse(track)
        while waiting := [track for track in several if track.n_pending]:
            room = self.chunk
            work: list[Work] = []
            for track in waiting[:room]:
                # Each gets at least one token, the first as many as fit.
                n = min(track.n_pending, max(1, room - len(waiting)))
                work.append((track, n))
                room -= n
            self.run(work)

    def run(self, work: list[Work], hidden: bool = False) -> int:
        """One forward pass over the next n pending tokens of each source; return how many that are.

        With `hidden` the sources get final hidden states instead of logits.
        """
        if not work:
            return 0
        for source, n in work:
            if n != 1 or not source.at_end:
                break
        else:
            self.decode([source for source, _ in work])
            return len(work)
        batch = Batch()
        wanted: list[tuple[Source, int, int]] = []  # how many rows and tokens of each
        for source, n in work:
            first = len(batch)
            wanted.append((source, source.fill(batch, n), len(batch) - first))
            batch.adapt(first, source.track.mix)
        rows, start = self._compute(self._placing(batch), hidden), 0
        for source, n_rows, n in wanted:
            if n > source.step_tokens:
                self.metrics.prompt_tokens += n
            else:
                self.metrics.decoded_tokens += n
            source.take(rows[start : start + n_rows])
            start += n_rows
            if source.track.checkpoints is not None:
                source.track.checkpoints.mark(source.track.n_placed, len(source.track))
        return len(batch)

    def decode(self, sources: list[Source] | list[Track]) -> None:
        """`run` for the most frequent pass: the last token of each source, behind its last cell."""
        tracks = [source.track for source in sources]
        for track in tracks:
            track.logits = None  # of the token before: a device may write the new ones there
        rows = self.decode_rows(
            tracks, [track.tokens[-1] for track in tracks], [track.id for track in tracks]
        )
        for i, source in enumerate(sources):  # iterating over the rows takes longer
            source.take_row(rows[i])

    def decode_rows(self, tracks: list[Track], tokens: list[int], ids: list[int]) -> Rows:
        """The rows of `decode`, of tracks with these last tokens and ids, for a caller that takes them."""
        n = len(ids)
        if self.orphans or n > self.cells.n_free:
            self.make_room(n)
        if self.states is not None and n > self.states.slots.n_free:
            self.states.make_room([(number,) for number in ids])
        mixes = [track.mix for track in tracks] if self.adapters else None
        rows = self._compute(lambda: Decoding(self.cells, tokens, ids, mixes))
        if self.states is not None:
            for track in tracks:
                if track.checkpoints is not None:
                    track.checkpoints.mark(len(track), len(track))
        self.metrics.decoded_tokens += n
        return rows

    def _placing(self, batch: Batch) -> Callable[[], Batch]:
        """Make room for a batch: what takes its cells, and slots where states have to be copied."""
        self.make_room(len(batch))
        if self.states is not None:
            self.states.make_room([members for members, _ in batch.states(self.cells).groups])

        def place() -> Batch:
            batch.place(self.cells)
            return batch

        return place

    def _compute(self, place: Callable[[], Batch], hidden: bool = False) -> Rows:
        """Place a batch and run it; cells that were not computed, for whatever reason, are given back."""
        begun, cpu = time.perf_counter(), time.thread_time()
        try:
            self.cells.hold()
            batch = place()
            if self.states is not None:
                self.states.apply(batch.moves)
            rows = self.backend.hidden(batch) if hidden else self.backend.forward(batch)
            self.check_maps()
            self.cells.commit()
            return rows
        except BaseException:
            self.cells.rollback()
            raise
        finally:
            self.metrics.forward += time.perf_counter() - begun
            self.metrics.forward_cpu += time.thread_time() - cpu

    def forward(self, batch: Batch, hidden: bool = False) -> Floats:
        """Place a batch and run it: float32[n_wanted, n_vocab], or with `hidden` the final hidden states.

        On failure nothing is changed, but with recurrent layers sequences of the batch go back to their last
        checkpoints.
        """
        with self.lock:
            self.check_open()
            batch.check(self.spec.n_vocab, self.spec.n_vector, self.context_length)
            try:
                rows = self._compute(self._placing(batch), hidden)
            except BaseException:
                batch.forget_placement()
                raise
            return host_rows(rows, self.spec.n_vocab)

    def activations(self, batch: Batch, layers: list[int]) -> Floats:
        """Place a batch and run it: float32[layers, n, n_embd], the residual stream at the end of layers."""
        assert isinstance(self.backend, Activates)
        batch.check(self.spec.n_vocab, self.spec.n_vector, self.context_length)
        place = self._placing(batch)
        try:
            self.cells.hold()
            place()
            if self.states is not None:
                self.states.apply(batch.moves)
            states = self.backend.activations(batch, layers)
            self.check_maps()
            self.cells.commit()
            return states
        except BaseException:
            self.cells.rollback()
            raise

    def shift(self, sequence: int, start: int, stop: int | None, delta: int, lag: int = 0) -> None:
        """Move a sequence's tokens to other positions, rotating their keys; shared cells are copied first.

        With `lag` their rotated positions move by so much more: they are less far behind (cache/lags.py).
        """
        self.require_shift()
        self.make_room(self.cells.count_shared(sequence, start, stop))
        old, new = self.cells.unshare(sequence, start, stop)
        if len(old):
            self.backend.copy_cells(old, new)
        moved = self.cells.shift(sequence, start, stop, delta)
        if len(moved):
            if lag and self.cells.lags is not None:
                self.cells.lags[moved] -= lag
            self.backend.rotate_cells(moved, delta + lag)

    # -- the prefix cache --

    def lookup(self, track: Track) -> Match:
        """The longest computed prefix that a track without cells can share; changes nothing.

        Its last token is left out, so that there is something to compute logits from.
        """
        if not self._may_share(track):
            return NO_MATCH
        items, slots = track.tokens[:-1], self.slots
        source, n = self.prefixes.find(items, track.domain)
        n_common, parked = n, True
        if slots is not None:
            source, n = self.prefixes.find_state(items, track.domain)
        for other in self.tracks.values():
            if other is not track and other.domain == track.domain:
                shared = common(other.exact_tokens(), items)
                n_common = max(n_common, shared)
                if slots is not None:
                    shared = slots.nearest(other.id, shared)
                if shared > n:
                    source, n, parked = other.id, shared, False
        return Match(source, n, parked, n_common) if n_common else NO_MATCH

    def share(self, track: Track, match: Match) -> None:
        """Give a track without cells those of a match."""
        if not self._may_share(track):
            return
        n = match.n
        self.prefixes.lookups += 1
        if match.source is not None:
            if match.parked:
                self.prefixes.touch(match.source)
            self.cells.copy(match.source, track.id, 0, n)
            self.prefixes.hits += 1
            self.prefixes.tokens_saved += n
            self.metrics.cached_tokens += n
        if track.checkpoints is not None:
            track.checkpoints.want(match.n_common)  # others may part from it there too
        if not track.preempted:
            track.n_cached = n

    def _may_share(self, track: Track) -> bool:
        """Whether a track could take cells of a prefix: it has none, and stands at positions 0, 1, 2, …"""
        return self.prefix_cache and not track.n_placed and len(track) >= 2 and track.position == len(track)

    def reuse(self, track: Track) -> None:
        """Let a track without cells share the longest prefix that has been computed already."""
        self.share(track, self.lookup(track))

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
        n = n if exact is None else min(n, exact)
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

    def make_room(self, wanted: int) -> None:
        """See that so many cells are free: parked sequences are evicted, then `CacheFull` is raised."""
        self.recover()
        if wanted <= self.cells.n_free and not self.orphans:
            return
        self.tidy()
        if wanted > self.cells.n_free and not self.prefixes.evict(wanted):
            raise self.cache_full(wanted)

    def n_available(self, claimed: Iterable[Match] = ()) -> int:
        """How many cells are free or can be evicted, less those of matches that are about to be shared."""
        taken = [self.cells.view(match.source)[: match.n] for match in claimed if match.source is not None]
        return self.cells.n_free + self.prefixes.n_evictable(taken)

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

    def cache_full(self, wanted: int, claimed: Iterable[Match] = ()) -> CacheFull:
        """The error that says what holds the cells, and what to do."""
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

    # -- checks --

    def require_shift(self) -> None:
        """Raise `Unsupported` unless tokens can be moved to other positions."""
        self.backend.capabilities.require("shift", self.backend.name)
        if self.slots is not None:
            raise self.slots.unsupported(
                "moving tokens to other positions", "truncate the text and append what should follow"
            )

    def check_tokens(self, tokens: Iterable[int]) -> list[int]:
        """The tokens as a list of ids that are in the vocabulary."""
        return checked_tokens(tokens, self.spec.n_vocab, self.images)

    def image_tokens(self, image: Pixels, salt: str | None = None) -> list[int]:
        """The tokens of an image; it is encoded once for all that have the same salt."""
        if self.images is None:
            raise InvalidRequest(f"this model sees no images; {REMEDY}", param="images")
        return self.images.tokens(image, salt)

    def check_maps(self) -> None:
        """Raise `ModelError` if a file that the model is read from was cut: the results are worthless."""
        if broken_mappings() != self._n_broken:
            check_maps(self.maps)
            self._n_broken = broken_mappings()  # another model's

    def check_open(self) -> None:
        """Raise unless the model is open."""
        if self._is_forked:
            raise InvalidRequest(forking.FORKED)
        if self.closed:
            raise InvalidRequest("the model is closed; load it again")

    def abandon(self) -> None:
        """Refuse everything from now on, and leave the backend alone: this is a forked child."""
        self.closed = self._is_forked = True
        self.orphans.clear()

    def close(self) -> None:
        """Free the backend and the vision encoder."""
        self.closed = True
        self.orphans.clear()
        self.backend.close()
        if self.images is not None:
            self.images.close()
