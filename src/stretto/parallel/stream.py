"""A parallel run as an iterator over its steps."""

from __future__ import annotations

from stretto.engine.engine import Engine
from stretto.engine.stream import EventStream
from stretto.parallel.render import ParallelText
from stretto.parallel.run import Run
from stretto.parallel.types import ParallelStep


class ParallelStream(EventStream[ParallelStep]):
    """Iterate it for `ParallelStep`s; `result` is the whole when it has ended, `cancel()` ends it.

    A step comes when its set is chosen. Its members' cells, attention and pruning are filled in later.
    """

    def __init__(self, engine: Engine, run: Run) -> None:
        super().__init__(engine, run, run.output.events)
        self._run = run

    @property
    def result(self) -> ParallelText:
        """The whole text; finishes the run first."""
        for _ in self:
            pass
        text: ParallelText = self._run.result()
        return text

    @property
    def so_far(self) -> ParallelText:
        """What has come up to now."""
        return self._run.decoder.result()
