"""The persistent batch: plain requests on a device, where nothing but sampling decides how each goes on.

While the same requests decode, a step is one pass over all of them, one call that samples all rows, and one
loop that appends the tokens: what is the same in each step is kept here. The device waits for the host only
from a step's tokens until the next pass is launched, so all that can wait is done behind that: where nobody
reads the events of a text before its end, its tokens become text while the device computes the next ones.

It is a second way through a step, for backends that sample many rows at once. With 256 requests the device
waits for a fifth of the time that the other way takes (benchmarks/steps.py).
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from stretto.backends.base import SamplesRows
from stretto.engine.decoders.plain import PlainDecoder
from stretto.engine.request import Request
from stretto.engine.rows import Rows
from stretto.engine.runner import Runner
from stretto.errors import InvalidRequest
from stretto.sampling.sampler import WRONG

AnyRequest = Request[Any]


class PersistentBatch:
    """Requests that decode side by side, each with its last token pending."""

    def __init__(self, running: list[AnyRequest], decoders: list[PlainDecoder]) -> None:
        self._running = running  # the scheduler's list: another one, or another length, is another batch
        self.n = len(running)
        self._requests = list(running)
        self._decoders = decoders
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
        self._left = min(decoder.n_unchecked for decoder in decoders)  # steps until a limit has to be checked
        self._at_once = [i for i, decoder in enumerate(decoders) if not decoder.output.can_wait]
        self._waiting = [i for i, decoder in enumerate(decoders) if decoder.output.can_wait]
        self._held: list[int] = []  # tokens of those that wait, behind their texts
        self._n_given = 0  # of those that wait have been given out since
        self.is_over = False  # or a step was interrupted
        for decoder in decoders:
            decoder.before_end = self.catch_up

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
        return cls(running, [request.decoder for request in running])

    def is_of(self, running: list[AnyRequest]) -> bool:
        """Whether these are its requests still."""
        return self._running is running and self.n == len(running)

    def step(self, runner: Runner, device: SamplesRows) -> None:
        """One token for each."""
        self.is_over = True  # unless all goes well
        try:
            rows = runner.decode_rows(self._tracks, self._pending, self._ids)
        finally:
            self.catch_up()
        begun = time.perf_counter()
        tokens = self._sample(rows, device)
        runner.metrics.sampling += time.perf_counter() - begun
        self._left -= 1
        if self._left <= 0 or min(tokens) < 0 or not self._ends.isdisjoint(tokens):
            for i, token in enumerate(tokens):
                self._accept(i, token, rows)
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

    def catch_up(self) -> None:
        """Give out the tokens that wait."""
        while self._held and self._n_given < len(self._waiting):
            i = self._waiting[self._n_given]
            self._n_given += 1
            request = self._requests[i]
            if not request.finished:
                request.advance(self._decoders[i].give_out, self._held[i])

    def _sample(self, rows: Rows, device: SamplesRows) -> list[int]:
        uniforms = [0.0] * self.n
        for i, random in self._random:
            uniforms[i] = random.uniform()
        try:
            return device.sample_rows(rows, self._params, uniforms)
        except BaseException:  # the logits are computed once more, and get the same numbers
            for _, random in self._random:
                random.skip_to(random.draws - 1)
            raise

    def _accept(self, i: int, token: int, rows: Rows) -> None:
        """Let a request take its token as in any other step."""
        request = self._requests[i]
        if request.finished:
            return
        if token < 0:
            request.fail(InvalidRequest(WRONG[token]))
            return
        self._tracks[i].take_row(rows[i])
        request.advance(self._decoders[i].accept_sampled, token)
