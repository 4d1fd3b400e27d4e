"""The persistent batch: plain requests, where nothing but sampling decides how each goes on.

While the same requests decode, a step is one pass over all of them, one call that samples all rows, and one
loop that appends the tokens: what is the same in each step is kept here. Where nobody reads the events of a
text before its end, its tokens become text while a device computes the next ones.

A device that can (`GoesAhead`) does not wait for the host at all: the next pass is queued behind the sampling
of its tokens, before the host has seen them, and every step takes the tokens of a pass that the last one has
queued. Where a text ends with such a token, its row of the pass was in vain: its cell is free again, and the
row is left out of the next pass. Whatever else comes up ends the batch, and the requests get the rows of the
pass as those of any other (`settle`).

It is a second way through a step, for backends that sample many rows at once (benchmarks/steps.py).
"""

from __future__ import annotations

import time
from collections import deque
from functools import partial
from operator import is_
from typing import Any

from stretto.backends.base import GoesAhead, SamplesRows
from stretto.engine.decoders.plain import PlainDecoder
from stretto.engine.request import Request
from stretto.engine.rows import Rows
from stretto.engine.runner import Runner
from stretto.engine.track import Track
from stretto.errors import InvalidRequest
from stretto.sampling.sampler import WRONG

AnyRequest = Request[Any]


class PersistentBatch:
    """Requests that decode side by side, each with its last token pending."""

    def __init__(self, requests: list[AnyRequest], decoders: list[PlainDecoder]) -> None:
        self._held: list[int] = []  # tokens of those that wait, behind their texts
        self._n_given = 0  # of those that wait have been given out since
        self._ahead: Rows | None = None  # of a pass over the pending tokens, which is queued
        self._dropped: set[int] = set()  # ids of tracks that gave their cells of that pass back
        self._may_go_ahead = True
        self.is_over = False  # or a step was interrupted
        self._left = min(decoder.n_unchecked for decoder in decoders)  # steps until a limit has to be checked
        self._have(requests, decoders)
        for decoder in decoders:
            decoder.before_end = partial(self._before_end, decoder.track)

    def _have(self, requests: list[AnyRequest], decoders: list[PlainDecoder]) -> None:
        """Consist of these requests from now on."""
        self.n = len(requests)
        self._requests, self._decoders = requests, decoders
        self._tracks = [decoder.track for decoder in decoders]
        self._texts = [track.tokens for track in self._tracks]
        self._ids = [track.id for track in self._tracks]
        self._pending = [tokens[-1] for tokens in self._texts]  # whose cells the next pass fills
        self._params = [decoder.params.sampling for decoder in decoders]
        self._random = [
            (i, track.random)
            for i, (track, params) in enumerate(zip(self._tracks, self._params, strict=True))
            if params.temperature != 0
        ]
        self._ends = frozenset[int]().union(*(decoder.end_ids for decoder in decoders))
        self._at_once = [i for i, decoder in enumerate(decoders) if not decoder.output.can_wait]
        self._waiting = [i for i, decoder in enumerate(decoders) if decoder.output.can_wait]

    @classmethod
    def of(cls, running: list[AnyRequest], most: int) -> PersistentBatch | None:
        """The batch of all running requests, up to `most`; None if one of them needs more than sampling."""
        if not 0 < len(running) <= most:
            return None
        for request in running:
            decoder = request.decoder
            if (
                type(decoder) is not PlainDecoder
                or not decoder.is_sampled_only
                or request.finished
                or request.siblings
                or request.deadline is not None
                or not decoder.track.at_end
            ):
                return None
        return cls(list(running), [request.decoder for request in running])

    def is_of(self, running: list[AnyRequest]) -> bool:
        """Whether these are its requests still; while a pass is queued, some of them may have ended."""
        mine = self._requests
        if self._ahead is not None:
            mine = [request for request in mine if not request.finished]
        return len(mine) == len(running) and all(map(is_, mine, running))

    def step(self, runner: Runner, device: SamplesRows) -> None:
        """One token for each."""
        self.is_over = True  # unless all goes well
        try:
            rows: Rows | list[Any] | None = self._ahead
            if rows is None:
                rows = runner.decode_rows(self._tracks, self._pending, self._ids)
        finally:
            self.catch_up()
        begun = time.perf_counter()
        alive = [i for i, request in enumerate(self._requests) if not request.finished]
        tokens = self._sample(rows, alive, runner, device)
        runner.metrics.sampling += time.perf_counter() - begun
        if len(alive) < self.n:
            rows, tokens = [rows[i] for i in alive], [tokens[i] for i in alive]
            self._have([self._requests[i] for i in alive], [self._decoders[i] for i in alive])
        self._left -= 1
        if self._left <= 0 or min(tokens, default=0) < 0 or not self._ends.isdisjoint(tokens):
            for i, token in enumerate(tokens):
                self._accept(i, token, rows)
            self._held = []
            self.is_over = self._ahead is None
            return
        if self._at_once:
            for i in self._at_once:
                self._accept(i, tokens[i], rows)
            for i in self._waiting:
                if not self._requests[i].finished:
                    self._texts[i].append(tokens[i])
        else:
            deque(map(list.append, self._texts, tokens), maxlen=0)
        self._pending = self._held = tokens
        self._n_given, self.is_over = 0, False

    def settle(self) -> None:
        """End the batch: tokens that wait are given out, and rows that are being computed given to all."""
        self.catch_up()
        rows, self.is_over = self._ahead, True
        if rows is not None:
            for i, (request, track) in enumerate(zip(self._requests, self._tracks, strict=True)):
                if request.finished:
                    continue
                if track.n_missing < 0:  # its token was not accepted: the step was interrupted
                    self._drop(track)
                else:
                    track.take_row(rows[i])
        self._ahead = None

    def catch_up(self) -> None:
        """Give out the tokens that wait."""
        while self._held and self._n_given < len(self._waiting):
            i = self._waiting[self._n_given]
            self._n_given += 1
            request = self._requests[i]
            if not request.finished:
                request.advance(self._decoders[i].give_out, self._held[i])

    def _sample(self, rows: Any, alive: list[int], runner: Runner, device: SamplesRows) -> list[int]:
        """A token for each row, also of those that are no longer needed; queues the next pass if it can."""
        uniforms = [0.0] * self.n
        for i, random in self._random:
            uniforms[i] = random.uniform()
        self._ahead = None
        try:
            if isinstance(device, GoesAhead) and self._can_go_ahead(runner, device, len(alive)):
                tokens = self._go_ahead(rows, uniforms, alive, runner, device)
                if tokens is not None:
                    return tokens
            return device.sample_rows(rows, self._params, uniforms)
        except BaseException:  # the logits are computed once more, and get the same numbers
            self._ahead = None
            for _, random in self._random:
                random.skip_to(random.draws - 1)
            raise

    def _can_go_ahead(self, runner: Runner, device: GoesAhead, n: int) -> bool:
        """Whether no limit ends a text with the next token, and the step behind it has cells."""
        return (
            self._may_go_ahead
            and self._left > 1
            and self.n <= device.most_queued
            and n > 0
            and runner.can_decode_ahead(n)
        )

    def _go_ahead(
        self, rows: Any, uniforms: list[float], alive: list[int], runner: Runner, device: GoesAhead
    ) -> list[int] | None:
        """Queue the sampling and the pass over its tokens, then wait for these; None if one has none yet."""
        ids = [self._ids[i] for i in alive]
        device.queue_rows(rows, self._params, uniforms)
        which = alive if len(alive) < self.n else None
        cells, ahead = runner.decode_ahead(ids, lambda batch: device.forward_queued(batch, which))
        try:
            tokens = device.take_rows(self.n)
            sampled = [tokens[i] for i in alive]
            if min(sampled) < 0:  # rows that are sampled in another way, or not at all
                self._may_go_ahead = False
                runner.take_back(ids)
                return None
            runner.cells.name_each(ids, cells, sampled)
        except BaseException:
            runner.take_back(ids)
            raise
        self._ahead, self._dropped = ahead, set()
        return tokens

    def _before_end(self, track: Track) -> None:
        self.catch_up()
        self._drop(track)

    def _drop(self, track: Track) -> None:
        """Give back the cell of a pass that is queued: the text does not go on."""
        if self._ahead is not None and track.id not in self._dropped:
            self._dropped.add(track.id)
            track.cells.remove(track.id, track.cells.end(track.id) - 1)

    def _accept(self, i: int, token: int, rows: Any) -> None:
        """Let a request take its token as in any other step."""
        request = self._requests[i]
        if request.finished:
            return
        if token < 0:
            request.fail(InvalidRequest(WRONG[token]))
            return
        self._tracks[i].take_row(rows[i])
        request.advance(self._decoders[i].accept_sampled, token)
        if request.finished:
            self._drop(self._tracks[i])
