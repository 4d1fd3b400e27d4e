"""The runner: a backend and its pool of cells. It computes tracks and knows no request.

Everything that changes cells goes through it, under its lock: passes over pending tokens and shifts here;
forks, cached prefixes, parking and eviction in the pool (engine/pool.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from stretto.backends.base import (
    Backend,
    Batch,
    Decoding,
    Draw,
    DrawsRows,
    Prepares,
    Rows,
    Tap,
    host_rows,
)
from stretto.cache.items import ImageLike, Images, is_sound
from stretto.cache.prefix import PrefixCache
from stretto.cache.slots import Moves, Slots
from stretto.engine.adapters import Adapters
from stretto.engine.metrics import History
from stretto.engine.pool import CellPool, Match
from stretto.engine.tokens import REMEDY, checked_tokens
from stretto.engine.track import Source, TakesStates, Track
from stretto.errors import InvalidRequest, Unsupported
from stretto.hardware import fork_safety
from stretto.text.messages import INSTEAD
from stretto.weights.mapped import GuardedMap, broken_mappings, check_maps

if TYPE_CHECKING:
    from stretto.engine.draft_costs import RowCosts
    from stretto.engine.next_tokens import HeadCells

__all__ = ["Match", "Runner", "Work"]


# States of recurrent layers in the runner's hands: room for them, and copies before a pass.
#
# A model without recurrent layers has no `States`, and nothing here is called.

Groups = Sequence[Sequence[int]]  # of sequences, each with one state


class States:
    """The slots of a backend."""

    def __init__(self, backend: Backend, slots: Slots, prefixes: PrefixCache) -> None:
        self.slots = slots
        self._backend = backend
        self._prefixes = prefixes

    def make_room(self, groups: Groups) -> None:
        """See that there are slots to advance these groups: checkpoints go, then `CacheFull` is raised."""
        slots = self.slots
        wanted = slots.n_needed(groups)
        if wanted <= slots.n_free or self._prefixes.evict_states(wanted):
            return
        for group in groups:  # parked sequences and checkpoints give up the states that they share with these
            slot = slots.state(group[0])
            if slot is not None:
                self._prefixes.forget_state(slot, keep=slots.users(slot))
        wanted = slots.n_needed(groups)
        if wanted > slots.n_free:
            raise slots.full(wanted, slots.n_free)

    def n_missing(self, groups: Groups, n_drafts: int = 0) -> int:
        """How many slots it takes to advance these groups, if that is more than can be had; else 0."""
        slots = self.slots
        if len(groups) + n_drafts <= slots.n_free:
            return 0
        wanted = slots.n_needed(groups, hard=True) + n_drafts
        return wanted if wanted > slots.n_free + len(slots.checkpoints()) else 0

    def apply(self, moves: Moves) -> None:
        """Clear and copy states, before the pass that advances them."""
        if moves.cleared:
            self._backend.clear_slots(np.array(moves.cleared, np.int32))
        if moves.targets:
            self._backend.copy_slots(np.array(moves.sources, np.int32), np.array(moves.targets, np.int32))
        self._prefixes.trim_states()

    def own(self, sequence: int, position: int) -> int:
        """Give a sequence a state of its own to advance to a position outside of a batch; return its slot."""
        self.make_room([(sequence,)])
        moves = self.slots.advance([((sequence,), position)])
        self.apply(moves)
        return moves.slots[0]


Floats = NDArray[np.float32]
Work = tuple[Source, int]  # so many pending tokens of a source
Computed = TypeVar("Computed")
Placed = TypeVar("Placed", bound=Batch)


class Runner(CellPool):
    """A backend that computes the tracks of a pool of cells."""

    def __init__(
        self, backend: Backend, prefix_cache: bool = True, chunk: int = 512, checkpoint_bytes: int = 0
    ) -> None:
        super().__init__(backend, prefix_cache, checkpoint_bytes)
        self.backend = backend
        self.draws = backend if isinstance(backend, DrawsRows) else None  # many rows with its threads
        self.prepares = backend if isinstance(backend, Prepares) else None  # many rows on its device
        self.spec = backend.spec
        self.states = None if self.slots is None else States(backend, self.slots, self.prefixes)
        self.chunk = chunk  # tokens in one pass, at most
        self.history = History(self.metrics)
        self.adapters = Adapters(backend, self.tracks)
        self.images: Images | None = None  # makes tokens of images, if the model has a vision encoder
        self.heads: dict[Path | None, HeadCells] = {}  # that draft, by file; None: the model's own layer
        self.row_costs: RowCosts | None = None  # of passes that decode, once drafts have to pay
        self.maps: Collection[GuardedMap] = ()  # files that stay mapped
        self._n_broken = 0
        self._is_forked = self._in_pass = False

    # -- passes --

    def compute(self, tracks: Iterable[Track]) -> None:
        """Compute all pending tokens of some tracks, in as few passes as the chunk size allows."""
        several = list(tracks)
        if len(several) == 1 and several[0].at_end:
            self.run([(several[0], 1)], at_end=True)
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

    def run(self, work: list[Work], hidden: bool = False, at_end: bool = False) -> int:
        """One forward pass over the next n pending tokens of each source; return how many that are.

        With `hidden` the sources get final hidden states instead of logits. `at_end` says that each has just
        its track's last token pending, behind its last cell, which is otherwise found out.
        """
        if not work:
            return 0
        if at_end or all(n == 1 and source.at_end for source, n in work):
            self._run_last([source for source, _ in work])
            return len(work)
        batch = Batch()
        wanted: list[tuple[Source, int, int]] = []  # how many rows and tokens of each
        shown: list[tuple[TakesStates, list[int], int, list[Tap]]] = []  # hidden states for heads that draft
        for source, n in work:
            first = len(batch)
            wanted.append((source, source.fill(batch, n), len(batch) - first))
            batch.adapt(first, source.track.mix)
            if source.track.taps is not None:
                source.track.taps.ask(batch, first, source.track.n_placed, source.track.tokens)
            if (taker := source.track.states) is not None:
                taps = [batch.tap(site, range(first, len(batch))) for site in taker.sites]
                shown.append((taker, source.track.tokens, source.track.n_placed, taps))
        before, n_prompt = self.metrics.forward, self.metrics.prompt_tokens
        (_, rows), start = self.run_batch(self._placing(batch), self._rows_of(hidden)), 0
        for source, n_rows, n in wanted:
            if n > source.step_tokens:
                self.metrics.prompt_tokens += n
            else:
                self.metrics.decoded_tokens += n
            source.take(rows[start : start + n_rows])
            if source.track.taps is not None:
                source.track.taps.take()
            start += n_rows
            if source.track.checkpoints is not None:
                source.track.checkpoints.mark(source.track.n_placed, len(source.track))
        if self.row_costs is not None and self.metrics.prompt_tokens == n_prompt:
            self.row_costs.note(len(batch), self.metrics.forward - before)
        for taker, tokens, place, taps in shown:
            several = [tap.values for tap in taps]
            states = several[0] if len(several) == 1 else np.concatenate(several, axis=1)
            taker.take_states(tokens, place, states)
        return len(batch)

    def _run_last(self, sources: list[Source]) -> None:
        """`run` for the most frequent pass: the last token of each source, behind its last cell."""
        tracks = [source.track for source in sources]
        for track in tracks:
            track.logits = None  # of the token before: a device may write the new ones there
        tokens, ids = [track.tokens[-1] for track in tracks], [track.id for track in tracks]
        before = self.metrics.forward
        _, rows = self.decode(tracks, tokens, ids)
        if self.row_costs is not None:
            self.row_costs.note(len(tracks), self.metrics.forward - before)
        for i, source in enumerate(sources):  # iterating over the rows takes longer
            source.take_row(rows[i])

    def decode(
        self,
        tracks: Sequence[Track],
        tokens: list[int],
        ids: list[int],
        compute: Callable[[Decoding], Rows] | None = None,
    ) -> tuple[Decoding, Rows]:
        """A pass over the last tokens of tracks, behind their last cells, for a caller that takes the rows.

        `compute` takes the place of the backend's `forward`. Where `can_decode_ahead`, it may do so before
        the tokens are known: their cells are to be named then, and the tracks are not needed.
        """
        n = len(ids)
        if self.orphans or n > self.cells.n_free:
            self.make_room(n)
        if self.states is not None and n > self.states.slots.n_free:
            self.states.make_room([(number,) for number in ids])
        mixes = [track.mix for track in tracks] if self.adapters else None
        decoded = self.run_batch(
            lambda: Decoding(self.cells, tokens, ids, mixes), compute or self.backend.forward
        )
        if self.states is not None:
            for track in tracks:
                if track.checkpoints is not None:
                    track.checkpoints.mark(len(track), len(track))
        self.metrics.decoded_tokens += n
        return decoded

    def can_decode_ahead(self, n: int) -> bool:
        """Whether n tokens that only the device knows can be computed by `decode`."""
        return (
            self.states is None
            and not self.adapters
            and not self.orphans
            and self.cells.lags is None
            and n <= self.cells.n_free
        )

    def take_back(self, ids: list[int]) -> None:
        """Free the last cell of each sequence: their tokens were computed in vain."""
        for number in ids:
            self.cells.remove(number, self.cells.end(number) - 1)

    def prepare(self, draws: list[Draw]) -> None:
        """Sample rows on the backend's device together, if it can: whoever asks for one has it then."""
        if self.prepares is not None and draws:
            begun = time.perf_counter()
            self.prepares.prepare(draws)
            self.metrics.sampling += time.perf_counter() - begun

    def _placing(self, batch: Batch) -> Callable[[], Batch]:
        """Make room for a batch: what takes its cells, and slots where states have to be copied."""
        self.make_room(len(batch))
        if self.states is not None:
            self.states.make_room([members for members, _ in batch.states(self.cells).groups])

        def place() -> Batch:
            batch.place(self.cells)
            return batch

        return place

    def _rows_of(self, hidden: bool) -> Callable[[Batch], Rows]:
        return self.backend.hidden if hidden else self.backend.forward

    def run_batch(
        self, place: Callable[[], Placed], compute: Callable[[Placed], Computed]
    ) -> tuple[Placed, Computed]:
        """Place a batch and run it; cells that were not computed, for whatever reason, are given back."""
        if self._in_pass:
            raise InvalidRequest(
                "nothing can be computed in the middle of a pass, where functions of patches are called; "
                "compute what they need before the request"
            )
        begun, cpu = time.perf_counter(), time.thread_time()
        try:
            self._in_pass = True
            self.cells.hold()
            batch = place()
            if self.states is not None:
                self.states.apply(batch.moves)
            computed = compute(batch)
            self.check_maps()
            self.cells.commit()
            return batch, computed
        except BaseException:
            self.cells.rollback()
            raise
        finally:
            self._in_pass = False
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
            if batch.taps:
                self.backend.capabilities.require("sites", self.backend.name)
            try:
                _, rows = self.run_batch(self._placing(batch), self._rows_of(hidden))
            except BaseException:
                batch.forget_placement()
                raise
            return host_rows(rows, self.spec.n_vocab)

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
        if not delta and lag:  # only rotated positions change
            view, positions = self.cells.view(sequence), self.cells.sequence_positions(sequence)
            moved = view[(positions >= start) & (positions < (np.inf if stop is None else stop))].copy()
        if len(moved):
            if lag and self.cells.lags is not None:
                self.cells.lags[moved] -= lag
            self.backend.rotate_cells(moved, delta + lag)

    # -- checks --

    @property
    def shift_obstacle(self) -> str:
        """Why tokens cannot be moved to other positions; "" if they can."""
        if self.slots is not None:
            return f"the state of {self.slots.kind} layers sums up all tokens before it and cannot be moved"
        if not self.backend.capabilities.shift:
            return f"the {self.backend.name} backend cannot rotate keys of this model"
        if self.spec.learned_positions:
            return "this model's positions are learned: they are in K and V, and cannot be changed there"
        return ""

    def require_shift(self) -> None:
        """Raise `Unsupported` unless tokens can be moved to other positions."""
        self.backend.capabilities.require("shift", self.backend.name)
        if self.slots is not None:
            raise self.slots.unsupported(
                "moving tokens to other positions", "truncate the text and append what should follow"
            )
        if reason := self.shift_obstacle:
            raise Unsupported(f"{reason}; truncate the text and append what should follow")

    def check_tokens(self, tokens: Iterable[int], param: str = "tokens") -> list[int]:
        """The tokens as a list of ids that are in the vocabulary; `param` holds them, for errors."""
        return checked_tokens(tokens, self.spec.n_vocab, self.images, param)

    def image_tokens(self, image: ImageLike, salt: str | None = None) -> list[int]:
        """The tokens of an image or a sound; it is encoded once for all that have the same salt."""
        if self.images is None and is_sound(image):
            raise InvalidRequest(INSTEAD["audio"], param="audio")
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
            raise InvalidRequest(fork_safety.FORKED)
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
        for cells in self.heads.values():
            cells.head.close()
        self.backend.close()
        if self.images is not None:
            self.images.close()
