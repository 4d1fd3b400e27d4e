"""Responses that are made while their clients do not wait: `background` of `/v1/responses`.

Such a response is in the store from the start. It is queued in the engine before its client gets an answer:
a request that is wrong, or that there is no room for, is refused as any other.
"""

from __future__ import annotations

import asyncio
from typing import Any

from stretto.server.callers import Caller
from stretto.server.errors import ApiError, translate, unsupported
from stretto.server.responses_schemas import ResponseRequest
from stretto.server.responses_shape import ResponseShape
from stretto.server.state import Job, State

CANCEL_SECONDS = 10.0  # for a cancelled response to end; a step of the engine takes less


def check_background(body: ResponseRequest) -> None:
    """Raise for fields that do not go with `background`."""
    if not body.background:
        return
    if body.stream:
        raise unsupported(
            "stream: a response in the background is not streamed; ask GET /v1/responses/ID for it", "stream"
        )
    if body.store is False:
        raise ApiError(
            400,
            "store: a response in the background has to be stored, to be fetched later; leave store out",
            param="store",
            code="invalid_value",
        )


def run_in_background(state: State, shape: ResponseShape) -> dict[str, Any]:
    """Make a response of a generation that has started; returns what is known of it now."""
    key = shape.generation.caller.name, shape.id
    queued = shape.response("queued")
    shape.keep(queued)
    keep = shape.keep

    def keep_unless_forgotten(response: dict[str, Any]) -> None:
        if key in state.jobs:
            keep(response)

    shape.keep = keep_unless_forgotten
    state.jobs[key] = Job(shape.generation, asyncio.create_task(_finish(state, key, shape)))
    return queued


async def _finish(state: State, key: tuple[str, str], shape: ResponseShape) -> None:
    generation = shape.generation
    try:
        (result,) = await generation.results()
        shape.whole(result)
    except Exception as error:
        found = translate(error)
        if generation.cancelled:
            shape.keep(shape.response("cancelled"))
        else:
            fault = {"code": found.code or "server_error", "message": found.message}
            shape.keep(shape.response("failed", error=fault))
        generation.note_error(found)
    finally:
        generation.close()
        state.jobs.pop(key, None)
        generation.log_end()


def with_status(state: State, caller: Caller, response: dict[str, Any]) -> dict[str, Any]:
    """A stored response; one that is being made is in progress once it has left the queue."""
    job = state.jobs.get((caller.name, response["id"]))
    if job is None or job.generation.progress.state == "waiting":
        return response
    return {**response, "status": "in_progress"}


async def cancel_job(state: State, caller: Caller, name: str) -> None:
    """Cancel a response, and wait until it has ended; nothing, if it is not being made."""
    if (job := state.jobs.get((caller.name, name))) is not None:
        job.generation.cancel()
        await asyncio.wait([job.task], timeout=CANCEL_SECONDS)


def forget_job(state: State, caller: Caller, name: str) -> None:
    """Cancel a response that is not wanted any more: it is not stored when it ends."""
    if (job := state.jobs.pop((caller.name, name), None)) is not None:
        job.generation.cancel()
