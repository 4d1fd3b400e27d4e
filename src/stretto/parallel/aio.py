"""Parallel runs for asyncio: steps to iterate with `async for`, texts to await."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from stretto.engine.aio import AsyncEventStream, finished
from stretto.engine.request import Request
from stretto.engine.worker import Worker
from stretto.parallel.render import ParallelText
from stretto.parallel.run import ParallelRun
from stretto.parallel.types import ParallelStep


class AsyncParallelStream(AsyncEventStream[ParallelStep]):
    """Iterate it with `async for`; `await stream.result()` is the whole when it has ended.

    async for step in llm.aparallel("The cat", stream=True):
        print(step.brackets, end="", flush=True)
    """

    def __init__(self, worker: Worker, make: Callable[[], ParallelRun]) -> None:
        def begin() -> tuple[Request, deque[ParallelStep]]:
            run = make()
            return run, run.arrived

        super().__init__(worker, begin)

    async def result(self) -> ParallelText:
        """The whole; runs what is left first."""
        run = await self._exhausted()
        assert isinstance(run, ParallelRun)
        return run.outcome()


async def outcomes(
    worker: Worker, make: Callable[[], list[ParallelRun]], whole: bool
) -> ParallelText | list[ParallelText]:
    """Make runs, and wait until all of them have finished; if nobody waits any more, they end.

    What came of all of them is a list if `whole`, else what came of the first.
    """
    runs: list[ParallelRun] = []

    def begin() -> list[list[Request]]:
        runs.extend(make())
        return [[run] for run in runs]

    await finished(worker, begin)
    texts = [run.outcome() for run in runs]
    return texts if whole else texts[0]
