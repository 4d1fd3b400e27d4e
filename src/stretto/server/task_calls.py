"""Runs a verb of a model that does not generate, for a request: in its turn, in a thread, counted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from fastapi import Request

from stretto.server.errors import ApiError, translate
from stretto.server.generation import Generation, begin, unless_gone
from stretto.server.served_model import ServedModel
from stretto.server.state import state_of

Value = TypeVar("Value")

TASK_POOL = ThreadPoolExecutor(4, "stretto-server-task")


async def call(
    request: Request,
    name: str,
    verb: str,
    prepare: Callable[[Generation], Any],
    work: Callable[[Any, Any], Value],
    field: str,
) -> tuple[Value, dict[str, float]]:
    """The value of `work(model, prepared)` and its timings; `field` is what errors are about.

    `prepare` is a coroutine function that decodes the request's inputs and returns a list of them.
    """
    state = state_of(request)
    request.scope["stretto"].update(model=name)
    generation = await begin(state, name, request, verb)
    try:
        inputs = await unless_gone(request, prepare(generation))
        value = await unless_gone(request, in_turn(generation, verb, inputs, work))
        return value, generation.spent()
    except Exception as error:
        raise translate(error, field) from error
    finally:
        generation.close()


async def in_turn(
    generation: Generation, verb: str, inputs: list[Any], work: Callable[[Any, Any], Value]
) -> Value:
    """Compute when the requests before it are done; a full queue is refused."""
    served, most = generation.lease.model, generation.max_queue
    if served.waiting >= most:
        raise ApiError(
            429, f"{most} requests wait for {served.name} already", code="queue_full", retry_after=1
        )
    served.waiting += 1
    try:
        async with served.turn:
            return await _computed(served, verb, len(inputs), lambda: work(generation.lease.llm, inputs))
    finally:
        served.waiting -= 1


async def _computed(served: ServedModel, verb: str, n: int, work: Callable[[], Value]) -> Value:
    """Run in a thread to its end, also if the client is gone: the model is not used by two at once."""
    task = asyncio.ensure_future(asyncio.get_running_loop().run_in_executor(TASK_POOL, work))
    with served.counted(verb, n):
        try:
            return await asyncio.shield(task)
        finally:
            if not task.done():
                await asyncio.wait([task])
