"""`/v1/messages`: Anthropic's endpoints."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from stretto.server.anthropic_chat import NAMES, as_chat, thinking_arguments
from stretto.server.anthropic_events import MessageEvents, MessageShape
from stretto.server.anthropic_schemas import CountRequest, MessagesRequest
from stretto.server.conversation import converse, options_of, planned, renamed
from stretto.server.errors import Json
from stretto.server.generation import Generation, begin, started, unless_gone
from stretto.server.open_response import EVENTS
from stretto.server.prompt_ids import ids_of
from stretto.server.state import state_of
from stretto.server.streamed import Streamed
from stretto.tools.plan import ToolPlan

FIELDS = ("messages", "output_config.format")  # that hold the prompt and the grammar

router = APIRouter(tags=["Anthropic"])


@router.post("/v1/messages")
async def messages(body: MessagesRequest, request: Request) -> Response:
    """Answer a conversation."""
    settings = state_of(request).settings
    chat = as_chat(body)
    try:
        options = options_of(chat, settings.limits)
    except Exception as error:
        raise renamed(error, NAMES, *FIELDS) from error

    async def start(generation: Generation) -> ToolPlan:
        try:
            thinking = thinking_arguments(body, generation.lease.llm, generation.warn)
            return await converse(chat, generation, settings, options, thinking)
        except Exception as error:
            raise renamed(error, NAMES, *FIELDS) from error

    request.scope["stretto"].update(model=body.model)
    generation, plan = await started(request, body.model, start, *FIELDS)
    try:
        hidden = body.thinking is not None and body.thinking.display == "omitted"
        shape = MessageShape(generation, body.model, body.stop_sequences or [], hidden)
        if body.stream:
            eager = {tool.name for tool in body.tools or () if tool.eager_input_streaming}
            return Streamed(generation, generation.texts, MessageEvents(shape, plan, eager), EVENTS)
        (result,) = map(plan.read, await unless_gone(request, generation.results()))
        generation.close()
        return Json(shape.whole(result))
    except BaseException:
        generation.close()
        raise


@router.post("/v1/messages/count_tokens")
async def count_tokens(body: CountRequest, request: Request) -> Response:
    """The number of tokens of a conversation with its tools; nothing is generated."""
    state = state_of(request)
    chat = as_chat(body)
    generation = await begin(state, body.model, request)
    try:
        thinking = thinking_arguments(body, generation.lease.llm, generation.warn)
        _, prompt = await unless_gone(request, planned(chat, generation, state.settings, thinking))
        ids: list[Any] = await asyncio.to_thread(ids_of, generation.lease.llm, prompt)
    except Exception as error:
        raise renamed(error, NAMES, *FIELDS) from error
    finally:
        generation.close()
    return Json({"input_tokens": len(ids)})
