"""A sequence in the caller's hands: tokens with cells in the KV cache, computed when asked for."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from stretto.backends.base import DeviceRow, DrawsRows, Row
from stretto.cache.checks import check_position
from stretto.cache.items import is_image
from stretto.engine import editing
from stretto.engine.adapters import Parts
from stretto.engine.engine import Engine
from stretto.engine.params import sampling_params
from stretto.engine.track import Track
from stretto.engine.types import Approximate, Edit, EditMode, Step
from stretto.errors import InvalidRequest
from stretto.options.documenting import document_options
from stretto.options.generating import SAMPLING
from stretto.sampling.params import SamplingParams
from stretto.sampling.sampler import WRONG, RandomStream, log_probability
from stretto.text.detokenizer import Detokenizer

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from stretto.cache.items import ImageLike
    from stretto.options.keywords import SamplingOptions


# Tokens of several tracks drawn together, by the threads of a backend that has its logits in main memory.


def draw_each(
    backend: DrawsRows | None, tracks: list[Track], params: SamplingParams, end_ids: Collection[int]
) -> list[tuple[int, float]] | None:
    """A token of each track, whose logits are there, and its log-probability.

    None without a backend that draws them together, or where the parameters ask for more than it can.
    Where a row has no token to draw, or a track no room for one that does not end its text, nothing is drawn
    at all, and no random number is used up.
    """
    if backend is None or params.penalizes or params.logit_bias:
        return None
    rows = []
    for track in tracks:
        if not isinstance(track.logits, np.ndarray):
            return None
        rows.append(track.logits)
    is_random = params.temperature != 0
    uniforms = [track.random.uniform() if is_random else 0.0 for track in tracks]
    try:
        drawn = backend.draw_rows(rows, params, uniforms)
        for track, (token, _) in zip(tracks, drawn, strict=True):
            if token < 0:
                raise InvalidRequest(WRONG[token])
            if token not in end_ids:
                track.check_room(1)
    except BaseException:
        for track in tracks if is_random else ():
            track.random.skip_to(track.random.draws - 1)
        raise
    return drawn


class Sequence:
    """Tokens and their cells, one step at a time.

        seq = llm.sequence("The capital of France is")
        seq.logits[unwanted] = -np.inf          # edit what the model says
        step = seq.step(temperature=0)          # sample and append
        other = seq.fork()                      # shares all cells, costs none

    Tokens are computed when their logits are first needed, or before a fork, so appending is free and
    several sequences can be computed together (`llm.step`). A prefix that is in the cache already is not
    computed again. Removing tokens frees their cells; what they already did to the K and V of later tokens
    stays done.
    """

    def __init__(self, engine: Engine, track: Track) -> None:
        self._engine = engine
        self._runner = engine.runner
        self._track = track
        self._detokenizer = engine.tokenizer.detokenizer()
        self._n_edits = track.n_edits  # the detokenizer has seen so many

    # -- reading --

    @property
    def id(self) -> int:
        """Its number in the table of cells (`llm.cells`)."""
        return self._track.id

    @property
    def tokens(self) -> list[int]:
        """The ids of its tokens."""
        return list(self._track.tokens)

    @property
    def history(self) -> list[int]:
        """Its tokens, always in the same list, by which hooks know it; writing to that changes nothing."""
        return self._track.shown.show(self._track.tokens)

    @property
    def text(self) -> str:
        """Its tokens as text."""
        return self._engine.tokenizer.decode(self._track.tokens)

    @property
    def adapter(self) -> dict[str, float]:
        """The adapters that it is computed with, and their scales."""
        return {} if self._track.mix is None else dict(self._track.mix.parts)

    @property
    def positions(self) -> list[int]:
        """The position of each token."""
        with self._engine.lock:
            return editing.list_positions(self._runner, self._track)

    @property
    def position(self) -> int:
        """The position of the next token."""
        return self._track.position

    @property
    def n_pending(self) -> int:
        """How many tokens have not been computed yet."""
        return self._track.n_pending

    @property
    def n_prompt(self) -> int:
        """How many of its tokens are the prompt; penalties treat them differently."""
        return self._track.n_prompt

    @property
    def n_cached(self) -> int:
        """How many of its tokens were found in the prefix cache."""
        return self._track.n_cached

    @property
    def edit_mode(self) -> Approximate | None:
        """The mode of the last edit that left K and V which another text would not have, if any did."""
        return self._track.used_edit

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._track.closed or self._track.unwanted

    @property
    def random(self) -> RandomStream:
        """The random numbers that it samples with."""
        return self._track.random

    @random.setter
    def random(self, random: RandomStream) -> None:
        self._track.random = random

    def __len__(self) -> int:
        return len(self._track)

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{len(self)} tokens, next at {self.position}"
        return f"<Sequence {self.id}: {state}>"

    # -- the loop: logits, sample, append --

    @property
    def logits(self) -> Row:
        """float32[n_vocab] for the next token: writable, and valid until this sequence moves on."""
        row, track = self._track.logits, self._track
        if isinstance(row, np.ndarray) and not (track.closed or self._runner.closed or track.n_pending):
            return row
        with self._engine.lock:
            self._compute_row()
            return track.host_logits()

    def _compute_row(self) -> Row | DeviceRow:
        """The logits for the next token, where the backend has them; under the engine's lock."""
        track = self._track
        self._prepare()
        self._engine.compute([track])
        self._check_open()
        if track.logits is None:
            raise InvalidRequest(f"sequence {self.id} was changed while its logits were computed")
        return track.logits

    @document_options(SAMPLING)
    def sample(self, logits: ArrayLike | None = None, **options: Unpack[SamplingOptions]) -> int:
        """A token drawn from the logits as they are now, or from yours. Nothing is appended."""
        params = sampling_params(options)
        if logits is None:
            return self._track.sample(self.logits, params)
        row = np.asarray(logits, np.float32)
        if row.shape != (self._runner.spec.n_vocab,):
            raise InvalidRequest(
                f"logits must have shape ({self._runner.spec.n_vocab},), not {row.shape}", param="logits"
            )
        return self._track.sample(row, params)

    @document_options(SAMPLING)
    def step(self, **options: Unpack[SamplingOptions]) -> Step:
        """Sample a token and append it. An end token is returned and not appended."""
        return self._step(sampling_params(options))

    def _draw(self, params: SamplingParams) -> tuple[int, float]:
        """A token and its log-probability, from where the logits are; under the engine's lock."""
        row, track = self._compute_row(), self._track
        if not isinstance(row, np.ndarray):
            token = track.sample(row, params)
            return token, row.measure(token, 0, None)[0]
        if drawn := draw_each(self._runner.draws, [track], params, self._engine.tokenizer.end_ids):
            return drawn[0]
        token = track.sample(row, params)
        return token, log_probability(row, token)

    def _step(self, params: SamplingParams) -> Step:
        with self._engine.lock:
            return self._take(*self._draw(params))

    def _take(self, token: int, logprob: float, has_room: bool = False) -> Step:
        """Append what was drawn, unless it is an end token; under the engine's lock."""
        track = self._track
        if token in self._engine.tokenizer.end_ids:
            return Step(token, "", True, logprob)
        self._check_usable()
        if not has_room:  # or else that was found when it was drawn
            track.check_room(1)
        track.append_sampled(token)
        return Step(token, self._text_state().push(token), False, logprob)

    def append(self, what: int | str | Iterable[int] | ImageLike) -> None:
        """Append a token, tokens, text (in which special tokens are not parsed) or an image.

        An image is a `stretto.Image`, a PIL image, an array, the bytes of a file, or a `pathlib.Path`.
        """
        tokens = self._token_ids(what)
        with self._engine.lock:
            self._check_usable()
            self._track.extend(tokens)

    def _token_ids(self, what: int | str | Iterable[int] | ImageLike) -> list[int]:
        """Checked ids of what a caller gives as tokens."""
        if isinstance(what, str):
            what = self._engine.tokenizer.encode(what)
        elif is_image(what):
            what = self._runner.image_tokens(what, self._track.domain.salt)
        several: Any = [what] if isinstance(what, (int, np.integer)) else what
        return self._runner.check_tokens(several)

    # -- editing --

    def fork(self, seed: int | None = None) -> Sequence:
        """Another sequence with the same past. It shares all cells, and goes on by itself.

        It continues this sequence's random numbers, unless it gets a seed of its own.
        """
        with self._engine.lock:
            self._check_usable()
            random = self._track.random.fork() if seed is None else RandomStream(seed)
            self._engine.compute([self._track])  # so that there are cells to share
            twin = Sequence(self._engine, self._runner.fork(self._track, random))
            twin._detokenizer = self._text_state().fork()
            return twin

    def truncate(self, position: int) -> None:
        """Keep only the tokens at positions below `position`."""
        with self._engine.lock:
            self.remove(position, max(self.position, check_position("position", position)))

    def remove(self, start: int, stop: int, *, close: bool = False, mode: EditMode | None = None) -> Edit:
        """Remove the tokens at start ≤ position < stop.

        A hole stays: later tokens keep their positions. `close=True` moves them down instead, and rotates
        their keys to the new positions. With a `mode` they move down too: see `replace`.
        """
        if mode is not None:
            if close:
                raise InvalidRequest(
                    "close is what a mode does already; give one of them", param="close", value=close
                )
            return self.replace(start, stop, (), mode=mode)
        with self._engine.lock:
            self._check_usable()
            return editing.remove(self._runner, self._track, start, stop, close, self._compute)

    def replace(
        self,
        start: int,
        stop: int,
        what: int | str | Iterable[int] | ImageLike,
        *,
        mode: EditMode = "recompute",
    ) -> Edit:
        """Put tokens, or what `append` takes, in the place of those at start ≤ position < stop.

        Later tokens move up or down. Their K and V were computed with the tokens that were there before:

        - "recompute": they are computed again, with the next logits. The sequence is then, bit for bit, as if
          it had never been edited.
        - "shift": their keys are rotated to the new positions, and nothing but the new tokens is computed.
          What the removed tokens did to them stays done: an approximation.
        - "heal": as "shift", but the tokens next to the edit and the last ones are computed again.

        Where tokens cannot be moved (recurrent layers, or a backend that cannot rotate keys) they are
        computed again from the last checkpoint on. The result names the mode that was used, and why.

        >>> seq.replace(120, 1644, "[output removed]", mode="heal").recomputed
        96
        """
        tokens = self._token_ids(what)
        with self._engine.lock:
            self._check_usable()
            return editing.replace(self._runner, self._track, start, stop, tokens, mode, self._compute)

    def insert(
        self, at: int, what: int | str | Iterable[int] | ImageLike, *, mode: EditMode = "recompute"
    ) -> Edit:
        """Put tokens, or what `append` takes, before the token at a position, in a mode of `replace`."""
        at = check_position("at", at)
        return self.replace(at, at, what, mode=mode)

    def shift(self, start: int, stop: int | None = None, *, by: int) -> None:
        """Move the tokens at start ≤ position < stop by some positions, and rotate their keys with them.

        They keep the order of tokens: a move onto or across others is refused.
        """
        start, stop, by = editing.check_shift(start, stop, by)
        with self._engine.lock:
            self._check_usable()
            self._runner.require_shift()
            self._compute(self._track)
            editing.shift(self._runner, self._track, start, stop, by)

    def clear(self) -> None:
        """Remove all tokens; the next one is at position 0 again."""
        with self._engine.lock:
            self._check_usable()
            track = self._track
            self._runner.release(track)
            track.tokens = []
            track.has_images = False
            track.n_prompt = 0
            track.n_edits += 1

    def close(self, *, park: bool = True) -> None:
        """Close it: its cells stay cached until space is needed, or are free at once (`park=False`).

        A closed sequence cannot be used again; closing twice is fine. A request that is continuing it is
        cancelled within one step.
        """
        with self._engine.lock:
            track = self._track
            if not track.running:
                self._runner.close_track(track, park)
            elif not track.closed:
                track.unowned = track.unwanted = True
                self._engine.scheduler.changes.pending = True

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to a file, with its K and V and random numbers; `llm.restore` goes on from there.

        The file is there whole or not at all. Logits you have edited are not part of it.
        """
        from stretto.engine.saving import Saving

        with self._engine.lock:
            self._check_usable()  # under the lock: a closed sequence must not be computed
            with self._engine.computed(self._track, everything=True):
                self._check_usable()  # a callback of a request that ran meanwhile may have closed it
                saving = Saving(self._runner, self._track, self._text_state().state, self._engine.fingerprint)
        saving.write(path)

    def __enter__(self) -> Sequence:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # Not here: this may be called in the middle of anything. The runner tidies up when it next works.
        track = self._track
        if track.running:
            track.unowned = True  # the request that is continuing it closes it
        elif not track.closed and not self._runner.closed:
            self._runner.orphans.append((track.id, track.cache_key, track.exact))

    def _prepare(self) -> None:
        self._check_usable()
        self._track.redo_last()

    def _check_open(self) -> None:
        """Raise unless it and its model are open."""
        if self.closed:
            raise InvalidRequest(f"sequence {self.id} is closed; make a new one with llm.sequence")
        self._runner.check_open()

    def _check_usable(self) -> None:
        """Raise unless it is open and no request is continuing it."""
        self._check_open()
        if self._track.running:
            self._engine.settle()  # what was continuing it may have been dropped
        if self._track.running:
            raise InvalidRequest(f"sequence {self.id} is being continued by a request that is running")

    def _compute(self, track: Track) -> None:
        self._engine.compute([track])

    def _text_state(self) -> Detokenizer:
        """The detokenizer of `step`; it starts anew after an edit."""
        if self._n_edits != self._track.n_edits:
            self._n_edits = self._track.n_edits
            self._detokenizer = self._engine.tokenizer.detokenizer()
        return self._detokenizer


# -- for the library itself --


def track_in(engine: Engine, sequence: Sequence) -> Track:
    """The record of a sequence in an engine; raises if it belongs to another one, or is closed."""
    if sequence._engine is not engine:
        raise InvalidRequest(f"{sequence!r} is not a sequence of this model")
    sequence._check_usable()
    return sequence._track


def prepare(sequence: Sequence) -> None:
    """Make sure that computing the pending tokens gives logits: after an edit the last one is redone."""
    sequence._prepare()


def begin_edit(
    sequence: Sequence, start: int, stop: int, tokens: list[int], mode: EditMode
) -> Sequence | None:
    """A sequence in which the new tokens of an edit can be computed before it, in turns with what else runs.

    `finish_edit` shares its cells then. None if the edit itself computes nothing.
    """
    engine = sequence._engine
    with engine.lock:
        sequence._check_usable()
        checked = engine.runner.check_tokens(tokens)
        track = editing.begin(engine.runner, sequence._track, start, stop, checked, mode)
        return None if track is None else Sequence(engine, track)


def finish_edit(
    sequence: Sequence, start: int, stop: int, tokens: list[int], mode: EditMode, ahead: Sequence | None
) -> Edit:
    """`sequence.replace` with what `begin_edit` has made, which is closed."""
    engine = sequence._engine
    if ahead is None:
        return sequence.replace(start, stop, tokens, mode=mode)
    with engine.lock:
        try:
            sequence._check_usable()
            new = engine.runner.check_tokens(tokens)
            parts = engine.runner, sequence._track, start, stop, new, mode, sequence._compute
            return editing.replace(*parts, ahead._track)
        finally:
            ahead.close(park=False)


def step_all(engine: Engine, sequences: list[Sequence], params: SamplingParams) -> list[Step]:
    """A step of each sequence, whose logits are there: all are sampled at once if the backend can do that."""
    rows = [(one._track, one._track.logits) for one in sequences]
    tracks = [track for track, _ in rows]
    if drawn := draw_each(engine.runner.draws, tracks, params, engine.tokenizer.end_ids):
        return [sequence._take(*one, has_room=True) for sequence, one in zip(sequences, drawn, strict=True)]
    draws = [
        track.draw(row, params, n_top=0)
        for track, row in rows
        if row is not None and not isinstance(row, np.ndarray)
    ]
    engine.runner.prepare(draws)
    return [sequence._step(params) for sequence in sequences]


def new_sequence(
    engine: Engine, tokens: list[int], random: RandomStream, salt: str | None = None, adapter: Parts = ()
) -> Sequence:
    """A sequence with checked tokens, which is computed with adapters if there are any."""
    engine.runner.check_open()
    sequence = Sequence(engine, engine.runner.new_track(tokens, random, salt))
    sequence._track.adapt(engine.runner.adapters.mix(adapter))
    return sequence


def restored_sequence(
    engine: Engine, path: str | os.PathLike[str], share: bool = False, salt: str | None = None
) -> Sequence:
    """The sequence that `Sequence.save` wrote."""
    from stretto.engine.saving import restore

    sequence = new_sequence(engine, [], RandomStream(None), salt)
    if not share:  # a checksum tells a damaged file, not a forged one
        sequence._track.make_private()
    try:
        sequence._detokenizer.state = restore(engine.runner, sequence._track, path, engine.fingerprint)
    except BaseException:
        sequence._track.running = False
        sequence.close()
        raise
    return sequence
