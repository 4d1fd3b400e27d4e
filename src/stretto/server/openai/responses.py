"""`/v1/responses`: OpenAI's endpoint for answers that may be kept and gone on with."""

from __future__ import annotations

import asyncio
from secrets import token_hex
from typing import Annotated, Any

from fastapi import Query, Request
from pydantic import TypeAdapter
from starlette.responses import Response

from stretto.server.generation.answer import respond, start_answer
from stretto.server.generation.chat import converse, encode_chat, read_chat_options, rename_fields
from stretto.server.generation.generation import Generation, lease_model
from stretto.server.http.bodies import make_router
from stretto.server.http.errors import Json, dumps, field_error, translate, unsupported
from stretto.server.http.state import Caller, Job, Kept, State, get_caller, get_state
from stretto.server.openai.responses_answers import ResponseAnswer
from stretto.server.openai.responses_request import (
    NAMES,
    AnyItem,
    InputTokensRequest,
    Item,
    MessageItem,
    ResponseRequest,
    as_chat,
    list_hosted,
    list_items,
)

# Responses that are made while their clients do not wait: `background` of `/v1/responses`.
#
# Such a response is in the store from the start. It is queued in the engine before its client gets an
# answer: a request that is wrong, or that there is no room for, is refused as any other.

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
        raise field_error(
            "store",
            "store: a response in the background has to be stored, to be fetched later; leave store out",
        )


def run_in_background(state: State, answer: ResponseAnswer) -> dict[str, Any]:
    """Make a response of a generation that has started; returns what is known of it now."""
    key = answer.generation.caller.name, answer.id
    queued = answer.response("queued")
    answer.keep(queued)
    keep = answer.keep

    def keep_unless_forgotten(response: dict[str, Any]) -> None:
        if key in state.jobs:
            keep(response)

    answer.keep = keep_unless_forgotten
    state.jobs[key] = Job(answer.generation, asyncio.create_task(_finish(state, key, answer)))
    return queued


async def _finish(state: State, key: tuple[str, str], answer: ResponseAnswer) -> None:
    generation = answer.generation
    try:
        answer.whole(await generation.results())
    except Exception as error:
        found = translate(error)
        answer.keep(answer.response("cancelled") if generation.cancelled else answer.fail_response(found))
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


FIELDS = ("input", "text.format")  # that hold the prompt and the grammar
ITEMS: TypeAdapter[list[AnyItem]] = TypeAdapter(list[Item])

router = make_router("OpenAI")


@router.post("/v1/responses")
async def create(body: ResponseRequest, request: Request) -> Response:
    """Answer a conversation, or go on with an earlier response."""
    settings = get_state(request).settings
    check_background(body)
    before = _before(body, request)
    items = (*(before.items if before is not None else ()), *list_items(body))
    with rename_fields(NAMES, *FIELDS):
        chat = as_chat(body, items)
        options = read_chat_options(chat, settings.limits)

    def keep(response: dict[str, Any]) -> None:
        if body.store is not False:
            _keep(request, body, items, response, before)

    async def start(generation: Generation) -> ResponseAnswer:
        for param, message in list_hosted(body):
            generation.warn(param, message)
        with rename_fields(NAMES, *FIELDS):
            plan = await converse(chat, generation, settings, options)
        return ResponseAnswer(generation, body, chat, plan, keep)

    answer = await start_answer(request, body.model, start, *FIELDS)
    if body.background:
        return Json(run_in_background(get_state(request), answer))
    return await respond(request, answer, body.stream)


@router.post("/v1/responses/input_tokens")
async def input_tokens(body: InputTokensRequest, request: Request) -> Response:
    """The number of tokens of a conversation with its tools; nothing is generated."""
    before = _before(body, request)
    items = (*(before.items if before is not None else ()), *list_items(body))
    chat = as_chat(body, items)
    async with lease_model(request, body.model) as generation:
        with rename_fields(NAMES, *FIELDS):
            ids = await encode_chat(chat, generation, request)
    return Json({"object": "response.input_tokens", "input_tokens": len(ids)})


@router.get("/v1/responses/{response_id}")
async def retrieve(
    response_id: str, request: Request, stream: Annotated[bool | None, Query()] = None
) -> Response:
    """A response that was kept, or is being made."""
    if stream:
        raise unsupported("stream: a response that was kept is not streamed again", "stream")
    return Json(with_status(get_state(request), get_caller(request), _find(request, response_id).response))


@router.post("/v1/responses/{response_id}/cancel")
async def cancel(response_id: str, request: Request) -> Response:
    """End a response that is made in the background; one that has ended stays as it is."""
    if not _find(request, response_id).response["background"]:
        raise field_error(
            "response_id",
            f"response_id: {response_id[:64]} is not made in the background; disconnect to end a request",
        )
    await cancel_job(get_state(request), get_caller(request), response_id)
    return Json(_find(request, response_id).response)


@router.get("/v1/responses/{response_id}/input_items")
async def input_items(response_id: str, request: Request) -> Response:
    """The items of the input of a response that was kept."""
    data = [_shown(item) for item in _find(request, response_id).inputs]
    ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {}
    return Json({"object": "list", "data": data, "has_more": False, **ends})


@router.delete("/v1/responses/{response_id}")
async def delete(response_id: str, request: Request) -> Response:
    """Forget a response that was kept; one that is being made ends."""
    forget_job(get_state(request), get_caller(request), response_id)
    get_state(request).responses.remove(get_caller(request).name, response_id)
    return Json({"id": response_id, "object": "response", "deleted": True})


def _find(request: Request, response_id: str, param: str = "response_id") -> Kept:
    return get_state(request).responses.find(get_caller(request).name, response_id, param)


def _before(body: InputTokensRequest, request: Request) -> Kept | None:
    """The response that a request goes on with."""
    name = body.previous_response_id
    if name is None:
        return None
    found = _find(request, name, "previous_response_id")
    status = with_status(get_state(request), get_caller(request), found.response)["status"]
    if status not in ("completed", "incomplete"):
        raise field_error(
            "previous_response_id",
            f"previous_response_id: {name[:64]} is {status}; a response can be continued when it is complete",
        )
    return found


def _keep(
    request: Request,
    body: ResponseRequest,
    items: tuple[AnyItem, ...],
    response: dict[str, Any],
    before: Kept | None,
) -> None:
    inputs = tuple(item.model_copy(update={"id": item.id or _new_id(item)}) for item in list_items(body))
    known = items[: len(items) - len(inputs)]
    answer = ITEMS.validate_python(response["output"])
    new = sum(len(item.model_dump_json()) for item in inputs) + 2 * len(dumps(response))
    n_bytes = new + (before.n_bytes if before is not None else 0)
    kept = Kept(response, inputs, (*known, *inputs, *answer), n_bytes)
    get_state(request).responses.save(get_caller(request).name, kept)


def _new_id(item: AnyItem) -> str:
    return f"{'msg' if isinstance(item, MessageItem) else 'item'}_{token_hex(12)}"


def _shown(item: AnyItem) -> dict[str, Any]:
    """An item of an input as OpenAI's clients read it: the content of a message is a list."""
    fields = item.model_dump(exclude_none=True)
    if isinstance(item, MessageItem) and isinstance(item.content, str):
        kind = "output_text" if item.role == "assistant" else "input_text"
        fields["content"] = [{"type": kind, "text": item.content}]
    return {"status": "completed", **fields}
