"""The edge to asyncio: a stream of a chat's tokens whose result has the tool calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stretto.engine.aio import AsyncStream
from stretto.engine.request import Request
from stretto.engine.types import Result
from stretto.engine.worker import Worker
from stretto.tools.plan import ToolPlan


class AsyncToolStream(AsyncStream):
    """An async stream whose `await stream.result()` has the calls; its tokens are those of the whole text."""

    def __init__(self, worker: Worker, make: Callable[[], tuple[Request[Any], ToolPlan]]) -> None:
        plans: list[ToolPlan] = []

        def begin() -> Request[Any]:
            request, plan = make()
            plans.append(plan)
            return request

        super().__init__(worker, begin)
        self._plans = plans  # one, when the request has been made

    async def result(self) -> Result:
        """The whole result; runs the rest of the generation first."""
        found = await super().result()
        return self._plans[0].read(found)
