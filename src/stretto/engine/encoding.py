"""Pictures that sequences wait for, encoded in slices between forward passes.

A sequence goes as far as its next picture without vectors, and waits there; whoever has no such picture goes
on meanwhile. A picture that nobody waits for any more, because its request was cancelled say, is given up.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from stretto.cache.items import ImageToken, Picture

if TYPE_CHECKING:
    from stretto.engine.engine import Engine
    from stretto.engine.sequence import Sequence

ALONE_MS = 100.0  # of a slice while nobody else runs: between two, newcomers and timeouts are looked after

Pictures = dict[int, Picture]  # by identity, in the order in which they are needed


class Encoding:
    """The pictures of the sequences that run, and of those that are computed outside of steps."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._pending: Pictures = {}  # of running sequences: pictures of tokens that have no cells yet
        self._before: Pictures = {}  # the same in the last step
        self._outside: list[Pictures] = []  # of sequences that are computed outside of steps
        self._failed: dict[int, Exception] = {}  # in the last slice
        self._at_work = False  # something was being encoded in the last slice

    def begin(self) -> None:
        """A step begins: `ready` will be asked for every sequence that runs."""
        if self._pending:
            self._before, self._pending = {**self._before, **self._pending}, {}

    def ready(self, sequence: Sequence) -> int:
        """How many of its pending tokens can be computed: those before the first picture without vectors."""
        return self._look(sequence, self._pending)

    def slice(self, alone: bool) -> None:
        """Encode for a while what somebody waits for; let go of what nobody needs any more."""
        if not (self._pending or self._before or self._outside or self._at_work):
            return
        engine, wanted = self._engine, self._wanted()
        for key, picture in self._before.items():
            if key not in wanted:
                picture.release()
        self._before, self._failed = {}, {}
        if engine.images is None or engine.closed:
            return
        missing = [picture for picture in wanted.values() if not picture.ready]
        if missing or self._at_work:  # or else there is nothing to give up either
            begun = time.perf_counter()
            milliseconds = ALONE_MS if alone else engine.scheduler.limits.max_step_ms
            engine.images.work(missing, 1e-3 * milliseconds, alone)
            engine.metrics.encoding += time.perf_counter() - begun
            self._fail_those_who_wait(missing)
        self._at_work = bool(missing)

    @contextmanager
    def of(self, sequences: list[Sequence], everything: bool = False) -> Iterator[None]:
        """While some sequences are computed outside of steps: the pictures of pending tokens have vectors.

        Or those of all tokens, with `everything`. Others who run go on while they are encoded.
        """
        mine: Pictures = {}
        pictured = [sequence for sequence in sequences if sequence.pictured]
        self._outside.append(mine)
        try:
            for sequence in pictured:
                self._look(sequence, mine, everything)
            while not all(picture.ready for picture in mine.values()):
                self._go_on(pictured)
                if error := next((self._failed[key] for key in mine if key in self._failed), None):
                    raise error
            yield
        finally:
            self._outside = [pictures for pictures in self._outside if pictures is not mine]
            for key in mine.keys() - self._wanted().keys():
                mine[key].release()

    def _go_on(self, sequences: list[Sequence]) -> None:
        engine = self._engine
        if engine.depth or engine.scheduler.idle:
            self.slice(alone=True)
            return
        engine.step()
        for sequence in sequences:
            sequence.check_open()  # a callback may have closed it

    def _look(self, sequence: Sequence, pictures: Pictures, everything: bool = False) -> int:
        """Note the pictures of its pending tokens; say how many tokens stand before the first unready one."""
        tokens, ready = sequence.history, sequence.n_pending
        first = 0 if everything else self._engine.cells.count(sequence.id)
        last: Picture | None = None
        for index in range(first, len(tokens)):
            token = tokens[index]
            if type(token) is ImageToken and token.picture is not last and token.picture is not None:
                last = token.picture
                pictures[id(last)] = last
                if not last.ready:
                    ready = min(ready, index - first)
        return ready

    def _wanted(self) -> Pictures:
        wanted = dict(self._pending)
        for pictures in self._outside:
            wanted.update(pictures)
        return wanted

    def _fail_those_who_wait(self, pictures: list[Picture]) -> None:
        """What went wrong with a picture ends the requests that wait for it, and no others."""
        for picture in pictures:
            if picture.error is not None:
                self._failed[id(picture)], picture.error = picture.error, None
        if not self._failed:
            return
        for request in self._engine.scheduler.running:
            waiting: Pictures = {}
            for sequence in () if request.finished else request.sequences:
                self._look(sequence, waiting)
            if error := next((self._failed[key] for key in waiting if key in self._failed), None):
                request.fail(error)
