"""A parallel run as an iterator: whoever takes the next step steps the engine for it."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType

from stretto.engine.engine import Engine
from stretto.parallel.render import ParallelText
from stretto.parallel.run import ParallelRun
from stretto.parallel.types import ParallelStep


class ParallelStream:
    """Iterate it for `ParallelStep`s; `result` is the whole when it has ended, `cancel()` ends it.

    A step comes when its set is chosen. Its members' cells, attention and pruning are filled in later.
    """

    def __init__(self, engine: Engine, run: ParallelRun) -> None:
        self._engine = engine
        self._run = run
        engine.add(run)

    def __iter__(self) -> Iterator[ParallelStep]:
        return self

    def __next__(self) -> ParallelStep:
        run, ended = self._run, False
        while not ended:
            ended = run.finished  # asked first: its last step is there by then
            try:
                return run.arrived.popleft()
            except IndexError:  # none yet, or another thread took it
                pass
            try:
                self._engine.step_until(lambda: bool(run.arrived) or run.finished)
            except BaseException:  # Ctrl-C in the middle of a step: the cells are given back at once
                self.cancel()
                raise
        if run.error is not None:
            raise run.error
        raise StopIteration

    @property
    def result(self) -> ParallelText:
        """The whole; runs what is left first."""
        for _ in self:
            pass
        return self._run.outcome()

    @property
    def so_far(self) -> ParallelText:
        """What has come up to now."""
        return self._run.text_so_far()

    def cancel(self) -> None:
        """End the run, from any thread; its cells are free then. What is there stays readable."""
        with self._engine.lock:
            self._run.cancel()

    def __enter__(self) -> ParallelStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()

    def __del__(self) -> None:
        self._run.unwanted = True  # the next step ends what nobody holds any more
