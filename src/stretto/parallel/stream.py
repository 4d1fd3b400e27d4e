"""A parallel run as an iterator over its steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stretto.engine.aio import AsyncEventStream, finished
from stretto.engine.engine import Engine
from stretto.engine.request import Request
from stretto.engine.stream import EventStream
from stretto.engine.worker import Worker
from stretto.parallel.render import ParallelText
from stretto.parallel.run import Run
from stretto.parallel.types import ParallelStep


class ParallelStream(EventStream[ParallelStep]):
    """Iterate it for `ParallelStep`s; `result` is the whole when it has ended, `cancel()` ends it.

    A step comes when its set is chosen. Its members' cells, attention and pruning are filled in later.
    """

    def __init__(self, engine: Engine, run: Run) -> None:
        super().__init__(engine, run)
        self.run = run

    @property
    def result(self) -> ParallelText:
        """The whole text; finishes the run first."""
        for _ in self:
            pass
        text: ParallelText = self.run.result()
        return text

    @property
    def so_far(self) -> ParallelText:
        """What has come up to now."""
        return self.run.decoder.result()


# Parallel runs for asyncio: steps to iterate with `async for`, texts to await.


class AsyncParallelStream(AsyncEventStream[ParallelStep]):
    """Iterate it with `async for`; `await stream.result()` is the whole when it has ended.

    async for step in llm.aparallel("The cat", stream=True):
        print(step.brackets, end="", flush=True)
    """

    async def result(self) -> ParallelText:
        """The whole text; finishes the run first."""
        text: ParallelText = (await self._exhausted()).result()
        return text


async def outcomes(
    worker: Worker, make: Callable[[], list[Run]], whole: bool
) -> ParallelText | list[ParallelText]:
    """Make runs, and wait until all of them have finished; a cancelled task ends them.

    What came of all of them is a list if `whole`, else what came of the first.
    """
    runs: list[Run] = []

    def begin() -> list[list[Request[Any]]]:
        runs.extend(make())
        return [[run] for run in runs]

    await finished(worker, begin)
    texts = [run.result() for run in runs]
    return texts if whole else texts[0]
