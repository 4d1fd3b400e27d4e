"""The engine's record of one sequence. `Sequence` is the caller's handle on one; a request has one or more.

A track knows its tokens and which of them have cells. It computes nothing: the runner does, by asking each
track (or whatever stands for one, see `Source`) for the rows of the next batch. What belongs to one track is
here too: its tokens as hooks see them, its checkpoints, the cells of its drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from stretto.backends.base import Batch, DeviceRow, Draw, Mask, Mix, Row, Rows
from stretto.cache.cells import Cells
from stretto.cache.items import ImageToken, bare
from stretto.cache.prefix import COMMON, CacheKey, Domain
from stretto.cache.slots import Slots
from stretto.drafts.base import NO_DRAFT, ROOT, DraftTree
from stretto.engine.taps import Taps
from stretto.engine.tokens import add_vectors, uncut
from stretto.engine.types import Approximate, EditMode
from stretto.errors import ContextOverflow, InvalidRequest
from stretto.models.sites import Site
from stretto.sampling.params import SamplingParams
from stretto.sampling.sampler import RandomStream, choose

Floats = NDArray[np.float32]

# Tokens as hooks and other readers see them.


class TokenView:
    """One list for all readers of a list of tokens: what they write to it changes nothing of that one.

    It stays the same object, by which hooks know a sequence.
    """

    __slots__ = ("_copy",)

    def __init__(self) -> None:
        self._copy: list[int] = []

    def show(self, tokens: list[int]) -> list[int]:
        """The list, with these tokens."""
        if self._copy != tokens:
            self._copy[:] = tokens
        return self._copy

    def differs(self, tokens: list[int]) -> bool:
        """Whether a reader has written to it since it was shown."""
        return self._copy != tokens


# Where a track's recurrent states stay as checkpoints, from which it or others can be continued again.
#
# They are taken every so many tokens, near the end of prompts, and where a prompt parts from an earlier
# one. A pass over a prompt ends there, since the state behind a token is there only at the end of a pass.

CHECKPOINT_TOKENS = 256  # from a checkpoint of a text that goes on to the next, at least
TAIL_TOKENS = 8  # of a prompt behind its checkpoint: templates often rewrite the last few in the next turn
MIN_REPLAY_TOKENS = 32  # that a checkpoint must save to be worth a pass that ends there


class Checkpoints:
    """The checkpoints of one track."""

    __slots__ = ("_due", "_last", "_sequence", "_slots", "_wanted")

    def __init__(self, slots: Slots, sequence: int) -> None:
        self._slots = slots
        self._sequence = sequence
        self._wanted: set[int] = set()  # positions where another prompt parts from this one
        self._last = self._due = 0  # the position after the last pass, and where the next checkpoint is due

    def want(self, position: int) -> None:
        """Have one taken at a position that is still to come, if it is worth one."""
        if position > self._slots.position(self._sequence):
            self._wanted.add(position)

    def limit(self, n_placed: int, n_tokens: int, most: int) -> int:
        """Of `most` tokens behind the first `n_placed` those up to the next checkpoint."""
        last = self._slots.last_checkpoint(self._sequence)
        stops = {stop for stop in self._wanted if stop - last >= MIN_REPLAY_TOKENS}
        tail = n_tokens - TAIL_TOKENS
        if tail - max(n_placed, last) >= MIN_REPLAY_TOKENS:
            stops.add(tail)
        return min((stop - n_placed for stop in stops if n_placed < stop < n_placed + most), default=most)

    def mark(self, position: int, n_tokens: int) -> None:
        """After a pass that ended at a position: have the state stay, where a checkpoint is due."""
        if self._last <= position < self._due and position == n_tokens and not self._wanted:  # a decode step
            self._last = position
            return
        slots, sequence = self._slots, self._sequence
        last = slots.last_checkpoint(sequence)
        self._last, self._due = position, last + CHECKPOINT_TOKENS
        n = position - last
        is_stop = position == n_tokens - TAIL_TOKENS or position in self._wanted
        if n >= CHECKPOINT_TOKENS or (n >= MIN_REPLAY_TOKENS and is_stop):
            slots.mark(sequence)
        if self._wanted:
            self._wanted = {wanted for wanted in self._wanted if wanted > position}


# The cells of a draft: those of its first branch are its track's, each other branch has a lane.
#
# A lane is a sequence of its own that shares the track's past, for one pass. A drafted token is in the
# sequences of all branches that go through it, and attends from the first of them: to the past, and to the
# tokens above it.


def open_lanes(cells: Cells, sequence: int, lanes: Sequence[int]) -> tuple[int, ...]:
    """The sequences of all branches, each with the cells of the first."""
    for lane in lanes:
        cells.remove(lane)  # of a pass that failed
        cells.copy(sequence, lane)
    return (sequence, *lanes)


def add_draft(batch: Batch, draft: DraftTree, root: int, sequences: tuple[int, ...]) -> None:
    """Add the tokens of a draft to a batch, behind the position of its root, each with logits."""
    if len(sequences) == 1:
        for position, token in enumerate(draft.tokens, root + 1):
            batch.add(token, position, sequences, logits=True)
        return
    nodes = zip(draft.tokens, draft.depths[1:], draft.list_branches()[1:], strict=True)
    for token, depth, branches in nodes:
        batch.add(token, root + depth, [sequences[branch] for branch in branches], logits=True)


def keep_accepted(cells: Cells, sequence: int, draft: DraftTree, lanes: Sequence[int], node: int) -> None:
    """Keep the cells of a computed draft down to a node, and remove all others from the sequence.

    With recurrent layers it goes back to the state before the draft: accepted tokens are pending again.
    """
    start = cells.end(sequence) - len(draft.branches[0])
    n_accepted, branch = draft.depths[node], draft.branch_through(node)
    if not branch:
        cells.remove(sequence, start + n_accepted)
        return
    n_common = draft.n_common(branch)
    cells.remove(sequence, start + n_common)
    cells.copy(lanes[branch - 1], sequence, start + n_common, start + n_accepted)


class Source(Protocol):
    """What puts rows into batches: a track, or a decoder's own way of filling them for a track."""

    @property
    def track(self) -> Track:
        """The track whose cells the rows go to."""
        ...

    @property
    def step_tokens(self) -> int:
        """How many pending tokens make a decoding step; more than that are prefill."""
        ...

    @property
    def n_pending(self) -> int:
        """How many tokens have no cell yet."""
        ...

    @property
    def at_end(self) -> bool:
        """Whether just the track's last token is pending, behind its last cell: the plain decoding step."""
        ...

    @property
    def has_logits(self) -> bool:
        """Whether the logits behind the last token are there."""
        ...

    def fill(self, batch: Batch, most: int) -> int:
        """Put up to `most` pending tokens into a batch; return how many rows of logits they ask for."""
        ...

    def take(self, rows: Rows) -> None:
        """Take the logits that `fill` asked for, after the pass."""
        ...

    def take_row(self, row: Row | DeviceRow) -> None:
        """Take the logits of a plain decoding step."""
        ...

    def redo_last(self) -> None:
        """Make the last token pending again, so that its logits are computed once more."""
        ...


class TakesStates(Protocol):
    """What wants the hidden states of a track's tokens, as passes compute them."""

    @property
    def sites(self) -> tuple[Site, ...]:
        """Where they are."""
        ...

    def take_states(self, tokens: list[int], first: int, states: Floats) -> None:
        """Take those of the tokens from an index on, drafted ones included: float32[n, width].

        Those of several sites stand one behind the other.
        """
        ...


class Track:
    """Tokens of one sequence; the first `n_placed` of them have cells.

    `draft` holds tokens of speculative decoding behind the last token: computed with it, each with logits,
    and not part of the text until they are accepted.
    """

    __slots__ = (
        "__weakref__",
        "_views",
        "cells",
        "checkpoints",
        "closed",
        "context_length",
        "differs_at",
        "domain",
        "draft",
        "draft_base",
        "draft_lanes",
        "draft_rows",
        "edit_mode",
        "edits",
        "exact",
        "has_images",
        "id",
        "logits",
        "mix",
        "n_cached",
        "n_edited",
        "n_edits",
        "n_found",
        "n_given",
        "n_prompt",
        "preempted",
        "random",
        "resume",
        "running",
        "shown",
        "states",
        "step_tokens",
        "taps",
        "tokens",
        "unowned",
        "unwanted",
    )

    def __init__(self, cells: Cells, number: int, context_length: int, random: RandomStream) -> None:
        self.cells = cells
        self._views = cells.views
        self.id = number
        self.context_length = context_length
        self.random = random
        self.tokens: list[int] = []
        self.shown = TokenView()
        self.n_prompt = 0  # how many of them are the prompt
        self.n_cached = 0  # how many were found in the prefix cache
        self.n_given = self.n_found = 0  # how many a request continues, if one does, and had cells before
        self.differs_at: int | None = None  # where it leaves the nearest cached prompt, if it does
        self.has_images = False
        self.mix: Mix | None = None  # the adapters that its tokens are computed with
        self.taps: Taps | None = None  # what its request captures and changes within passes
        self.domain: Domain = COMMON  # in which it shares cells with others
        self.resume: int | None = None  # the position of the first token without a cell, if not at the end
        self.logits: Row | DeviceRow | None = None  # of the last token, while they are valid
        self.exact: int | None = None  # leading tokens with K/V of an unedited text; None: all of them
        self.edit_mode: Approximate | None = None  # of the last edit that left `exact` behind
        self.edits: EditMode = "recompute"  # how it may become one from a cached text that is edited
        self.n_edited = 0  # tokens that were computed for that
        self.n_edits = 0
        self.running = False  # owned by a request: nothing else may change it
        self.unowned = False  # its handle is gone: the request that runs it closes it
        self.unwanted = False  # its handle was closed: that request ends
        self.preempted = False  # it gave its cells up to another request and computes them again
        self.closed = False
        self.step_tokens = 1
        self.draft: DraftTree = NO_DRAFT
        self.draft_lanes: Sequence[int] = ()  # ids for its branches but the first
        self.draft_rows: Rows | None = None  # float32[1 + draft, n_vocab], once computed
        self.draft_base: int | None = None  # the slot with the state before the draft
        self.states: TakesStates | None = None  # wants the hidden states of its tokens
        self.checkpoints: Checkpoints | None = None  # of its recurrent states, if any are to stay

    @property
    def track(self) -> Track:
        """Itself: a track is its own source."""
        return self

    def __len__(self) -> int:
        return len(self.tokens)

    # -- positions --

    @property
    def n_placed(self) -> int:
        """How many tokens have cells."""
        view = self._views.get(self.id)
        return 0 if view is None else view.n

    @property
    def n_missing(self) -> int:
        """How many tokens have no cells, a draft left out."""
        view = self._views.get(self.id)
        return len(self.tokens) if view is None else len(self.tokens) - view.n

    @property
    def n_pending(self) -> int:
        """How many tokens have no cells, those of a draft included."""
        if not self.draft:
            view = self._views.get(self.id)
            return len(self.tokens) if view is None else len(self.tokens) - view.n
        return self.n_missing + len(self.draft) if self.draft_rows is None else 0

    @property
    def start(self) -> int:
        """The position of the first token without a cell."""
        return self.cells.end(self.id) if self.resume is None else self.resume

    @property
    def position(self) -> int:
        """The position of the next token."""
        return self.start + self.n_missing

    @property
    def has_logits(self) -> bool:
        """Whether the logits behind the last token are there."""
        return self.logits is not None

    @property
    def at_end(self) -> bool:
        """Whether just the last token is pending and goes behind the last cell, in a pass without taps."""
        if self.draft or self.taps is not None or self.states is not None:
            return False
        view = self._views.get(self.id)
        n = len(self.tokens)
        return (
            (n == 1 if view is None else n - view.n == 1)
            and self.resume is None
            and type(self.tokens[-1]) is not ImageToken
        )

    def begin_request(self) -> None:
        """Note what a request finds that continues a sequence: all of its tokens are that one's prompt."""
        self.n_given, self.n_found = len(self.tokens), self.n_placed

    @property
    def request_prompt(self) -> tuple[int, int]:
        """How many tokens are the prompt of its request, and how many of them needed no computing."""
        return max(self.n_prompt, self.n_given), self.n_found or self.n_cached

    def exact_tokens(self) -> list[int]:
        """Its leading tokens that have cells with the K/V of an unedited text."""
        n = self.n_placed
        if self.draft_rows is not None:  # tokens that were accepted may have other cells than the draft's
            n -= len(self.draft.branches[0])
        n = min(n, len(self.tokens))
        return self.tokens[: n if self.exact is None else min(n, self.exact)]

    @property
    def used_edit(self) -> Approximate | None:
        """The mode of the last edit that left K/V of another text, if any did."""
        return None if self.exact is None else self.edit_mode

    @property
    def cache_key(self) -> CacheKey:
        """What the prefix cache finds it by: its tokens, those of images without pixels, and its domain."""
        return CacheKey(bare(self.tokens) if self.has_images else self.tokens, self.domain)

    def make_private(self) -> None:
        """Share cells with forks alone from now on."""
        self.domain = self.domain._replace(private=self.id)

    def adapt(self, mix: Mix | None) -> None:
        """Have its tokens computed with adapters; it has no cells yet."""
        self.mix = mix
        self.domain = self.domain._replace(adapter=None if mix is None else mix.key)

    @property
    def text_tokens(self) -> tuple[list[int], int]:
        """Its tokens without those of images, and how many of them belong to the prompt."""
        if not self.has_images:
            return self.tokens, self.n_prompt
        texts = [token for token in self.tokens if not isinstance(token, ImageToken)]
        return texts, sum(not isinstance(token, ImageToken) for token in self.tokens[: self.n_prompt])

    # -- changing its tokens --

    def extend(self, tokens: list[int]) -> None:
        """Append tokens that have been checked."""
        self.check_room(len(tokens))
        if tokens:
            self.tokens += tokens
            self.logits = None
            self.has_images = self.has_images or ImageToken in map(type, tokens)

    def append_sampled(self, token: int, placed: bool = False) -> None:
        """Append a sampled token; if `placed`, its cell is filled already."""
        self.tokens.append(token)
        if not placed:
            self.logits = None

    def check_room(self, n: int) -> None:
        """Raise `ContextOverflow` unless n more tokens fit into the context."""
        if self.position + n > self.context_length:
            raise ContextOverflow(
                f"{n} tokens at position {self.position} do not fit into a context of {self.context_length}; "
                "shorten the text, or remove tokens first",
                n_tokens=self.position + n,
                limit=self.context_length,
            )

    def edited(self, first: int, mode: Approximate = "hole") -> None:
        """Note that from the token with this index on K/V are no longer those of an unedited text."""
        if first < len(self.tokens):
            self.exact = first if self.exact is None else min(first, self.exact)
            self.edit_mode = mode
        self.logits = None
        self.n_edits += 1

    def host_logits(self) -> Row:
        """The logits as a NumPy row: fetched from the device on first use, and used from then on."""
        row = self.logits
        if not isinstance(row, np.ndarray):
            assert row is not None
            self.logits = row = row.numpy()
        return row

    def sample(self, row: Row | DeviceRow, params: SamplingParams, mask: Mask | None = None) -> int:
        """A token from a row of logits, with the track's history and random numbers."""
        uniform = 0.0 if params.temperature == 0 else self.random.uniform()
        if not isinstance(row, np.ndarray):
            return row.sample(params, *self.text_tokens, uniform, mask)
        if self.has_images:
            return choose(row, params, *self.text_tokens, uniform, mask)
        return choose(row, params, self.tokens, self.n_prompt, uniform, mask)

    def draw(
        self,
        row: DeviceRow,
        params: SamplingParams,
        mask: Mask | None = None,
        n_top: int | None = None,
        n_before: int = 0,
    ) -> Draw:
        """What `sample` will ask of a row, when `n_before` others have been sampled."""
        uniform = 0.0 if params.temperature == 0 else self.random.peek(n_before)
        return Draw(row, params, *self.text_tokens, uniform, mask, n_top)

    def whole_images(self, index: int) -> int:
        """`index`, or the end of the image that a cut there would go through."""
        return uncut(self.tokens, index) if self.has_images else index

    def copy_from(self, other: Track) -> None:
        """Become a copy of another track, all of it computed: its tokens, its cells, its logits."""
        self.cells.copy(other.id, self.id)
        self.tokens = list(other.tokens)
        self.has_images = other.has_images
        self.domain, self.mix = other.domain, other.mix
        self.resume = other.resume
        self.logits = None if other.logits is None else other.logits.copy()
        self.n_prompt = other.n_prompt
        self.exact, self.edit_mode = other.exact, other.edit_mode

    def resync(self, start: int) -> None:
        """Read the tokens from the table of cells, which was changed by hand from position `start` on."""
        view = self.cells.view(self.id)
        tokens: list[int] = self.cells.tokens[view].tolist()
        kept = 0
        if self.cells.slots is not None:  # cells may be back at a checkpoint; tokens behind it are pending
            kept = min(start, len(self.tokens))
            tokens = self.tokens[:kept] + tokens[kept:]
        self.n_prompt = min(self.n_prompt, len(tokens))
        self.resume = None
        first = kept or int(np.searchsorted(self.cells.positions[view], start))
        # The table holds only stand-ins of image tokens, by which no prompt may find them.
        has_stand_ins = self.has_images and self.cells.slots is None
        self.tokens = tokens
        self.has_images = self.has_images and ImageToken in map(type, tokens)
        self.edited(0 if has_stand_ins else first)

    def redo_last(self) -> None:
        """Make the last token pending again, so that its logits are computed once more."""
        if not self.tokens:
            raise InvalidRequest("an empty sequence has no logits; append a token first")
        if self.logits is not None or self.n_pending:
            return
        if self.cells.slots is not None:  # from a checkpoint on
            self.cells.rewind(self.id, self.cells.end(self.id) - 1)
        else:
            self.resume = self.cells.end(self.id) - 1
            self.cells.remove_cells(self.id, self.cells.view(self.id)[-1:])

    # -- batches --

    def fill(self, batch: Batch, most: int) -> int:
        """Put up to `most` pending tokens into a batch; return how many rows of logits they ask for."""
        n = self.n_placed
        if self.checkpoints is not None:
            most = self.checkpoints.limit(n, len(self.tokens), most)
        if self.has_images:
            most = uncut(self.tokens, n + most) - n
        left = len(self.tokens) - n
        start, row, several = self.start, len(batch), self.tokens[n : n + most]
        lanes = self.draft_lanes[: len(self.draft.branches) - 1] if most >= left else ()
        sequences = open_lanes(self.cells, self.id, lanes)
        batch.extend(several, start, sequences, logits=most >= left)
        if self.has_images:
            add_vectors(batch, row, several)
        if most < left:
            return 0
        if self.draft and self.cells.slots is not None:
            self.draft_base = self.cells.slots.pin(self.id)
        if self.draft:
            add_draft(batch, self.draft, start + left - 1, sequences)
        return 1 + len(self.draft)

    def take(self, rows: Rows) -> None:
        """Take the logits of the last token, and those of the draft behind it."""
        self.resume = None
        self.logits = rows[0] if len(rows) else None
        if self.draft and len(rows):
            self.draft_rows = rows

    def take_row(self, row: Row | DeviceRow) -> None:
        """Take the logits of a plain decoding step."""
        self.resume = None
        self.logits = row

    # -- speculative decoding --

    def propose(self, draft: DraftTree, lanes: Sequence[int] = ()) -> None:
        """Have a draft computed with the last token; `lanes` are ids for its branches but the first."""
        self.draft, self.draft_lanes, self.draft_rows = draft, lanes, None

    def end_draft(self, node: int = ROOT) -> None:
        """Roll back: of a computed draft the tokens down to a node stay, the cells of others go."""
        if self.draft_rows is not None:
            keep_accepted(self.cells, self.id, self.draft, self.draft_lanes, node)
        self._close_draft()

    def _close_draft(self) -> None:
        if self.draft_base is not None and self.cells.slots is not None:
            self.cells.slots.unpin(self.id, self.draft_base)
        for lane in self.draft_lanes:
            self.cells.remove(lane)
        self.draft, self.draft_lanes, self.draft_rows, self.draft_base = NO_DRAFT, (), None, None

    def forget_logits(self) -> None:
        """Drop logits that an interrupted hook may have changed; they are computed again."""
        self.end_draft()
        self.logits = None

    def drop_draft(self) -> bool:
        """Give up a draft that has not been computed; say whether there was one."""
        dropped = bool(self.draft) and self.draft_rows is None
        if dropped:
            self._close_draft()
            self.step_tokens = 1
        return dropped
