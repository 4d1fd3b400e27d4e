"""A sequence in the caller's hands: tokens with cells in the cache, computed when asked for."""

from __future__ import annotations

import os
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stretto.backends.base import Batch, Mask
from stretto.cache.items import ImageToken, bare
from stretto.engine import editing, pictures, saving
from stretto.engine.params import sampling_params
from stretto.engine.types import Step
from stretto.errors import ContextOverflow, InvalidRequest
from stretto.sampling.rng import RandomStream
from stretto.sampling.sampler import choose

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from stretto.cache.items import Pixels
    from stretto.engine.engine import Engine
    from stretto.engine.params import SamplingOptions
    from stretto.sampling.params import SamplingParams

Row = NDArray[np.float32]
Rows = NDArray[np.float32]


class Sequence:
    """Tokens and their cells, one step at a time.

        seq = llm.sequence("The capital of France is")
        seq.logits[unwanted] = -np.inf          # edit what the model says
        step = seq.step(temperature=0)          # sample and append
        other = seq.fork()                      # shares all cells, costs none

    Tokens are computed when their logits are first needed, or before a fork, so appending is free and
    several sequences can be computed together (`llm.step`). A beginning that is in the cache already is
    not computed again. Removing tokens frees their cells; what they already did to the K and V of later
    tokens stays done.
    """

    at_once = 1  # how many pending tokens make a step; more than that are a prompt

    def __init__(self, engine: Engine, tokens: Iterable[int], random: RandomStream) -> None:
        self._engine = engine
        self.id = engine.new_id()
        self.closed = False
        self.n_cached = 0  # tokens that were found in the cache
        self.running = False  # in the hands of a request, which alone may change it
        self.random = random
        self._tokens: list[int] = []  # all, in order; the first len(view) of them have cells
        self.pictured = False  # some of them are of an image
        self._resume: int | None = None  # where the first token without a cell goes, if not at the end
        self._logits: Row | None = None  # of the last token, while they are true
        self.ahead: Row | None = None  # of the last token that was run ahead
        self._exact: int | None = None  # how many leading tokens have K and V of the tokens alone; None: all
        self.n_hooked = 0  # how many of its request's hooks have seen these logits
        self.preempted = False  # it had to give its cells up; what it finds again is its own
        self._detokenizer = engine.tokenizer.detokenizer()
        self._views = engine.cells.views
        self.n_prompt = 0
        with engine.lock:
            self.append(tokens)
            self.n_prompt = len(self._tokens)  # tokens from here on count as generated
            engine.live[self.id] = self

    # -- reading --

    @property
    def tokens(self) -> list[int]:
        """The ids of its tokens."""
        return list(self._tokens)

    @property
    def history(self) -> list[int]:
        """Its tokens without a copy: read it, do not change it."""
        return self._tokens

    @property
    def path(self) -> list[int]:
        """What hooks see of it: its tokens; of sets at one position the first tokens alone."""
        return self._tokens

    @property
    def text(self) -> str:
        """Its tokens as text."""
        return self._engine.tokenizer.decode(self._tokens)

    @property
    def positions(self) -> list[int]:
        """The position of each token."""
        with self._engine.lock:
            placed: list[int] = self._engine.cells.sequence_positions(self.id).tolist()
            return placed + list(range(self._start, self._start + self.n_pending))

    @property
    def position(self) -> int:
        """The position of the next token."""
        return self._start + self.n_pending

    @property
    def n_pending(self) -> int:
        """How many tokens have no cell yet."""
        view = self._views.get(self.id)
        return len(self._tokens) if view is None else len(self._tokens) - view.n

    def __len__(self) -> int:
        return len(self._tokens)

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{len(self)} tokens, next at {self.position}"
        return f"<Sequence {self.id}: {state}>"

    # -- the loop: logits, sample, append --

    @property
    def logits(self) -> Row:
        """float32[n_vocab] for the next token: writable, and valid until this sequence moves on."""
        row = self._logits
        if row is not None and not self.closed and not self._engine.closed and not self.n_pending:
            return row
        with self._engine.lock:
            self.prepare()
            self._engine.compute([self])
            row = self._logits
        if row is None:
            raise InvalidRequest(f"sequence {self.id} was changed while its logits were computed")
        return row

    def sample(self, logits: ArrayLike | None = None, **options: Unpack[SamplingOptions]) -> int:
        """A token drawn from the logits as they are now, or from yours. Nothing is appended."""
        params = sampling_params(options)
        if logits is None:
            return self.choose(self.logits, params)
        row = np.asarray(logits, np.float32)
        if row.shape != (self._engine.spec.n_vocab,):
            raise InvalidRequest(f"logits must have shape ({self._engine.spec.n_vocab},), not {row.shape}")
        return self.choose(row, params)

    def choose(self, row: Row, params: SamplingParams, mask: Mask | None = None) -> int:
        """The token that `params` take from a row of logits, with this sequence's history and stream."""
        uniform = 0.0 if params.temperature == 0 else self.random.uniform()
        if self.pictured:
            return choose(row, params, *self.spoken, uniform, mask)
        return choose(row, params, self._tokens, self.n_prompt, uniform, mask)

    @property
    def spoken(self) -> tuple[list[int], int]:
        """Its tokens without those of images, and how many of them belong to the prompt."""
        if not self.pictured:
            return self._tokens, self.n_prompt
        texts = [token for token in self._tokens if not isinstance(token, ImageToken)]
        return texts, self.n_prompt - (len(self._tokens) - len(texts))

    def step(self, **options: Unpack[SamplingOptions]) -> Step:
        """Sample a token and append it. An end token is told of and not appended."""
        params = sampling_params(options)
        return self.take(self.choose(self.logits, params))

    def take(self, token: int) -> Step:
        """Append a sampled token, unless it is an end token."""
        if token in self._engine.tokenizer.end_ids:
            return Step(token, "", True)
        with self._engine.lock:
            self.check_open()
            self._check_room(1)
            self.adopt(token)
        return Step(token, self._detokenizer.push(token), False)

    def append(self, what: int | str | Iterable[int] | Pixels) -> None:
        """Append a token, tokens, text (in which special tokens are not parsed) or a `stretto.Image`."""
        if isinstance(what, str):
            what = self._engine.tokenizer.encode(what)
        elif hasattr(what, "pixels"):
            what = self._engine.image_tokens(cast("Pixels", what))
        several = [what] if isinstance(what, (int, np.integer)) else what
        tokens = self._engine.check_tokens(several)
        with self._engine.lock:
            self.check_open()
            self._check_room(len(tokens))
            if tokens:
                self._tokens += tokens
                self._logits = None
                self.pictured = self.pictured or ImageToken in map(type, tokens)

    def _check_room(self, n: int) -> None:
        limit = self._engine.context_length
        if self.position + n > limit:
            raise ContextOverflow(
                f"{n} tokens at position {self.position} do not fit into a context of {limit}; "
                "shorten the text, or remove tokens first"
            )

    # -- editing --

    def fork(self, seed: int | None = None) -> Sequence:
        """Another sequence with the same past. It shares all cells, and goes on by itself.

        It continues this sequence's random numbers, unless it gets a seed of its own.
        """
        with self._engine.lock:
            self.check_open()
            random = self.random.fork() if seed is None else RandomStream(seed)
            self._engine.compute([self])  # so that there are cells to share
            twin = type(self)(self._engine, (), random)
            twin.follow(self)
            return twin

    def truncate(self, position: int) -> None:
        """Keep only the tokens at positions below `position`."""
        with self._engine.lock:
            self.remove(position, max(self.position, editing.check_position("position", position)))

    def remove(self, start: int, stop: int, *, close: bool = False) -> None:
        """Remove the tokens at start ≤ position < stop.

        A hole stays: later tokens keep their positions. `close=True` moves them down instead, and turns
        their K to the new positions.
        """
        editing.remove(self, start, stop, close)

    def uncut(self, index: int) -> int:
        """`index`, or the end of the image that a cut there would go through."""
        return pictures.uncut(self._tokens, index) if self.pictured else index

    def shift(self, start: int, stop: int | None = None, *, by: int) -> None:
        """Move the tokens at start ≤ position < stop by some positions, and turn their K with them.

        They keep their places in the order of tokens: a move onto or across others is refused.
        """
        editing.shift(self, start, stop, by)

    def clear(self) -> None:
        """Remove all tokens; the next one stands at position 0 again."""
        with self._engine.lock:
            self.check_open()
            self.release()
            self._tokens = []
            self.pictured = False
            self.n_prompt = 0
            self._exact = None
            self._detokenizer = self._engine.tokenizer.detokenizer()

    def close(self, *, park: bool = True) -> None:
        """Let it go: its cells stay parked until somebody needs the room, or are free at once (`park=False`).

        A closed sequence cannot be used again; closing twice is fine.
        """
        with self._engine.lock:
            if not self.closed:
                self.closed = True
                self._logits = None
                self._engine.live.pop(self.id, None)
                if not self._engine.closed:
                    self._engine.park(self.id, self._kept if park else [], self._exact)

    def _edited(self, first: int) -> None:
        """From the token with this index on, K and V are no longer those of an unedited text."""
        if first < len(self._tokens):
            self._exact = first if self._exact is None else min(first, self._exact)
        self._logits = None
        self._detokenizer = self._engine.tokenizer.detokenizer()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to a file, with its K and V and random numbers; `llm.restore` goes on from there.

        The file is there whole or not at all. Logits you have edited are not part of it.
        """
        self.check_open()
        saving.save(self, path)

    def __enter__(self) -> Sequence:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- for the engine --

    def follow(self, other: Sequence) -> None:
        """Become what another sequence, all of it computed, is: its tokens, its cells, its logits."""
        self._engine.cells.copy(other.id, self.id)
        self._tokens = list(other._tokens)
        self.pictured = other.pictured
        self._resume = other._resume
        self._logits = None if other._logits is None else other._logits.copy()
        self._detokenizer = other._detokenizer.fork()
        self.n_prompt = other.n_prompt
        self._exact = other._exact

    def prepare(self) -> None:
        """Make sure that computing the pending tokens gives logits: after an edit the last one is redone."""
        self.check_open()
        if not self._tokens:
            raise InvalidRequest("an empty sequence has no logits; append a token first")
        if self._logits is None and not self.n_pending:
            cells = self._engine.cells
            self._resume = cells.end(self.id) - 1
            cells.remove_cells(self.id, cells.view(self.id)[-1:])

    @property
    def _start(self) -> int:
        """The position of the first token without a cell."""
        return self._engine.cells.end(self.id) if self._resume is None else self._resume

    def exact_history(self) -> list[int]:
        """Its first tokens, those that have the K and V of an unedited text."""
        n = min(self._engine.cells.count(self.id), len(self._tokens))
        return self._tokens[: n if self._exact is None else min(n, self._exact)]

    @property
    def exact(self) -> bool:
        """Whether all its tokens have the K and V of an unedited text, so that they can be computed again."""
        return self._exact is None

    @property
    def ready(self) -> bool:
        """Whether its logits are there."""
        return self._logits is not None

    @property
    def at_end(self) -> bool:
        """Whether exactly its last token has no cell, and goes to its end."""
        view = self._views.get(self.id)
        n = len(self._tokens)
        return (
            (n == 1 if view is None else n - view.n == 1)
            and self._resume is None
            and type(self._tokens[-1]) is not ImageToken
        )

    def enter(self, batch: Batch, most: int) -> int:
        """Put up to `most` of the pending tokens into a batch; return how many rows of logits they get."""
        n = self._engine.cells.count(self.id)
        if self.pictured:
            most = pictures.uncut(self._tokens, n + most) - n
        done = n + most >= len(self._tokens)
        row, several = len(batch), self._tokens[n : n + most]
        batch.extend(several, self._start, (self.id,), logits=done)
        if self.pictured:
            pictures.add_vectors(batch, row, several)
        return 1 if done else 0

    def leave(self, rows: Rows) -> None:
        """What `enter` put into a batch has been computed; `rows` are the logits it asked for."""
        self.computed(rows[0] if len(rows) else None)

    def computed(self, row: Row | None) -> None:
        """Some pending tokens now have cells; `row` are the logits of the last, if it was among them."""
        self._resume = None
        self._logits = row
        self.n_hooked = 0

    def lighten(self) -> bool:
        """Give up what is not needed, if there is anything, and say so: cells are short."""
        return False

    def forget_logits(self) -> None:
        """Something was interrupted while it changed them: they are computed again."""
        self._logits = None

    def retract(self, n: int) -> None:
        """Take its last `n` tokens back and leave their cells: `adopt` them again as `placed`."""
        del self._tokens[len(self._tokens) - n :]

    def adopt(self, token: int, placed: bool = False) -> None:
        """Append a sampled token, which needs no check; if `placed`, its cell has been filled already."""
        self._tokens.append(token)
        if not placed:
            self._logits = None

    def adopt_placed(self, tokens: list[int]) -> None:
        """Append several of those that were run ahead."""
        self._tokens += tokens

    def settle(self) -> None:
        """All tokens that were run ahead have been adopted: the logits behind them are this sequence's."""
        self._logits, self.ahead = self.ahead, None
        self.n_hooked = 0

    def release(self) -> None:
        """Give the cells up and keep the tokens: what is not parked then is computed again."""
        self._engine.park(self.id, self._kept, self._exact, keep_id=True)
        self.preempted = self.running
        self._resume = None
        self._logits = None
        self._exact = None

    def resync(self, start: int) -> None:
        """The table of cells was changed by hand from position `start` on: read the tokens from it."""
        cells = self._engine.cells
        view = cells.view(self.id)
        self._tokens = cells.tokens[view].tolist()
        self.n_prompt = min(self.n_prompt, len(self._tokens))
        self._resume = None
        # The table knows only stand-ins of an image's tokens, by which no prompt may find them.
        self._edited(0 if self.pictured else int(np.searchsorted(cells.positions[view], start)))
        self.pictured = False

    @property
    def _kept(self) -> list[int]:
        """Its tokens, as they are kept in the cache."""
        return bare(self._tokens) if self.pictured else self._tokens

    def __del__(self) -> None:
        # Not here: this may be called in the middle of anything. The engine tidies up when it next works.
        if not self.closed and not self._engine.closed:
            self._engine.orphans.append((self.id, self._kept, self._exact))

    def check_open(self) -> None:
        """Raise unless it and its model are open."""
        if self.closed:
            raise InvalidRequest(f"sequence {self.id} is closed; make a new one with llm.sequence")
        self._engine.alive()
