"""A sequence in the caller's hands: tokens with cells in the cache, computed when asked for."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stretto.backends.base import FusedRun
from stretto.engine.params import sampling_params
from stretto.engine.types import Step
from stretto.errors import ContextOverflow, InvalidRequest
from stretto.sampling.rng import RandomStream
from stretto.sampling.sampler import choose

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from stretto.engine.engine import Engine
    from stretto.engine.params import SamplingOptions
    from stretto.sampling.hooks import NativeHook
    from stretto.sampling.params import SamplingParams

Row = NDArray[np.float32]


class Sequence:
    """Tokens and their cells, one step at a time.

        seq = llm.sequence("The capital of France is")
        seq.logits[unwanted] = -np.inf          # edit what the model says
        step = seq.step(temperature=0)          # sample and append
        other = seq.fork()                      # shares all cells, costs none

    Tokens are computed when their logits are first needed, or before a fork, so appending is free and
    several sequences can be computed together (`llm.step`). Removing tokens frees their cells; what they
    already did to the K and V of later tokens stays done.
    """

    def __init__(self, engine: Engine, tokens: Iterable[int], random: RandomStream) -> None:
        self._engine = engine
        self.id = engine.new_id()
        self.closed = False
        self.random = random
        self._tokens: list[int] = []  # all, in order; the first len(view) of them have cells
        self._resume: int | None = None  # where the first token without a cell goes, if not at the end
        self._logits: Row | None = None  # of the last token, while they are true
        self._ahead: Row | None = None  # of the last token of `run_ahead`
        self._detokenizer = engine.tokenizer.detokenizer()
        self.n_prompt = 0
        self.append(tokens)
        self.n_prompt = len(self._tokens)  # tokens from here on count as generated

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
    def text(self) -> str:
        """Its tokens as text."""
        return self._engine.tokenizer.decode(self._tokens)

    @property
    def positions(self) -> list[int]:
        """The position of each token."""
        placed: list[int] = self._engine.cells.sequence_positions(self.id).tolist()
        return placed + list(range(self._start, self._start + self.n_pending))

    @property
    def position(self) -> int:
        """The position of the next token."""
        return self._start + self.n_pending

    @property
    def n_pending(self) -> int:
        """How many tokens have no cell yet."""
        return len(self._tokens) - self._engine.cells.count(self.id)

    def __len__(self) -> int:
        return len(self._tokens)

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{len(self)} tokens, next at {self.position}"
        return f"<Sequence {self.id}: {state}>"

    # -- the loop: logits, sample, append --

    @property
    def logits(self) -> Row:
        """float32[n_vocab] for the next token: writable, and valid until this sequence moves on."""
        self._alive()
        if self._logits is None or self.n_pending:
            self.prepare()
            self._engine.compute([self])
        if self._logits is None:
            raise InvalidRequest(f"sequence {self.id} was changed while its logits were computed")
        return self._logits

    def sample(self, logits: ArrayLike | None = None, **options: Unpack[SamplingOptions]) -> int:
        """A token drawn from the logits as they are now, or from yours. Nothing is appended."""
        params = sampling_params(options)
        if logits is None:
            return self.choose(self.logits, params)
        row = np.asarray(logits, np.float32)
        if row.shape != (self._engine.spec.n_vocab,):
            raise InvalidRequest(f"logits must have shape ({self._engine.spec.n_vocab},), not {row.shape}")
        return self.choose(row, params)

    def choose(self, row: Row, params: SamplingParams) -> int:
        """The token that `params` take from a row of logits, with this sequence's history and stream."""
        uniform = 0.0 if params.temperature == 0 else self.random.uniform()
        return choose(row, params, self._tokens, self.n_prompt, uniform)

    def step(self, **options: Unpack[SamplingOptions]) -> Step:
        """Sample a token and append it. An end token is told of and not appended."""
        params = sampling_params(options)
        return self.take(self.choose(self.logits, params))

    def take(self, token: int) -> Step:
        """Append a sampled token, unless it is an end token."""
        if token in self._engine.tokenizer.end_ids:
            return Step(token, "", True)
        self.append(token)
        return Step(token, self._detokenizer.push(token), False)

    def append(self, what: int | str | Iterable[int]) -> None:
        """Append a token, tokens, or text (in which special tokens are not parsed)."""
        self._alive()
        if isinstance(what, str):
            what = self._engine.tokenizer.encode(what)
        several = [what] if isinstance(what, (int, np.integer)) else what
        tokens = self._engine.check_tokens(several)
        limit = self._engine.context_length
        if self.position + len(tokens) > limit:
            raise ContextOverflow(
                f"{len(tokens)} tokens at position {self.position} do not fit into a context of {limit}; "
                "shorten the text, or remove tokens first"
            )
        if tokens:
            self._tokens += tokens
            self._logits = None

    # -- editing --

    def fork(self, seed: int | None = None) -> Sequence:
        """Another sequence with the same past. It shares all cells, and goes on by itself.

        It continues this sequence's random numbers, unless it gets a seed of its own.
        """
        self._alive()
        random = self.random.fork() if seed is None else RandomStream(seed)
        self._engine.compute([self])  # so that there are cells to share
        twin = Sequence(self._engine, (), random)
        self._engine.cells.copy(self.id, twin.id)
        twin._tokens = list(self._tokens)
        twin._resume = self._resume
        twin._logits = None if self._logits is None else self._logits.copy()
        twin._detokenizer = self._detokenizer.fork()
        twin.n_prompt = self.n_prompt
        return twin

    def truncate(self, position: int) -> None:
        """Keep only the tokens at positions below `position`."""
        self.remove(position, max(self.position, self._check_position("position", position)))

    def remove(self, start: int, stop: int, *, close: bool = False) -> None:
        """Remove the tokens at start ≤ position < stop.

        A hole stays: later tokens keep their positions. `close=True` moves them down instead, and turns
        their K to the new positions.
        """
        self._alive()
        start, stop = self._check_position("start", start), self._check_position("stop", stop)
        if stop < start:
            raise InvalidRequest(f"start {start} lies behind stop {stop}; ranges are start ≤ position < stop")
        if stop < self.position and start < self._start and self.n_pending:
            self._engine.compute([self])  # tokens behind the hole take their places before it is made
        where = np.asarray(self.positions, np.int64)
        first, last = np.searchsorted(where, (start, stop)).tolist()
        if first == last:
            return
        self._engine.cells.remove(self.id, start, stop)
        del self._tokens[first:last]
        self.n_prompt -= max(0, min(last, self.n_prompt) - first)
        if first == 0 or start <= (self._resume or 0):
            self._resume = None
        self._logits = None
        self._detokenizer = self._engine.tokenizer.detokenizer()
        if close:
            self._engine.shift(self.id, stop, None, start - stop)

    def close(self) -> None:
        """Give the cells back. A closed sequence cannot be used again; closing twice is fine."""
        if not self.closed:
            self.closed = True
            self._logits = None
            self._engine.cells.remove(self.id)

    def __enter__(self) -> Sequence:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- for the engine --

    def prepare(self) -> None:
        """Make sure that computing the pending tokens gives logits: after an edit the last one is redone."""
        self._alive()
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

    @property
    def ready(self) -> bool:
        """Whether its logits are there."""
        return self._logits is not None

    def pending(self, most: int) -> tuple[list[int], int, bool]:
        """Up to `most` of the tokens without cells, the position of the first, and whether these are all."""
        n = self._engine.cells.count(self.id)
        return self._tokens[n : n + most], self._start, n + most >= len(self._tokens)

    def computed(self, row: Row | None) -> None:
        """Some pending tokens now have cells; `row` are the logits of the last, if it was among them."""
        self._resume = None
        self._logits = row

    def run_ahead(
        self,
        n: int,
        params: SamplingParams,
        ends: Iterable[int],
        last: bool,
        hooks: tuple[NativeHook, ...] = (),
    ) -> list[int]:
        """Sample up to `n` tokens in the backend's own loop. `adopt` those that count, then `settle`."""
        row, cells, start = self.logits, self._engine.cells, self.position
        placed = cells.place([0] * n, range(start, start + n), [(self.id,)] * n)
        run = FusedRun(
            logits=row,
            cells=placed,
            position=start,
            view=cells.view(self.id),
            table=cells.positions,
            params=params,
            tokens=self._tokens,
            n_prompt=self.n_prompt,
            random=self.random,
            ends=list(ends),
            last=last,
            hooks=hooks,
        )
        try:
            tokens, self._ahead = self._engine.backend.loop(run)
        except BaseException:
            cells.remove(self.id, start)
            raise
        cells.rename(self.id, placed[: len(tokens)], tokens)
        return tokens

    def adopt(self, token: int, placed: bool = False) -> None:
        """Append a sampled token, which needs no check; if `placed`, `run_ahead` has filled its cell."""
        self._tokens.append(token)
        if not placed:
            self._logits = None

    def settle(self) -> None:
        """All tokens of `run_ahead` have been adopted: its logits are this sequence's."""
        self._logits, self._ahead = self._ahead, None

    def release(self) -> None:
        """Give the cells back and keep the tokens: they will be computed again."""
        self._engine.cells.remove(self.id)
        self._resume = None
        self._logits = None

    def _alive(self) -> None:
        if self.closed:
            raise InvalidRequest(f"sequence {self.id} is closed; make a new one with llm.sequence")
        self._engine.alive()

    @staticmethod
    def _check_position(name: str, value: int) -> int:
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 0:
            raise InvalidRequest(f"{name} must be a position, 0 or more, not {value!r}")
        return int(value)
