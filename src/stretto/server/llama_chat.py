"""llama-server's paths for conversations: OpenAI's endpoints without `/v1`, and prompts of conversations."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from fastapi import APIRouter, Request
from starlette.responses import Response

from stretto.llm import LLM
from stretto.server import openai, responses
from stretto.server.conversation import planned
from stretto.server.errors import ApiError, Json, translate
from stretto.server.generation import begin, unless_gone
from stretto.server.legacy import with_tools
from stretto.server.prompt_ids import ids_of
from stretto.server.schemas import ChatRequest
from stretto.server.state import state_of

Value = TypeVar("Value")

router = APIRouter(tags=["llama-server"])

router.get("/models")(openai.models)
router.post("/responses")(responses.create)


@router.post("/chat/completions")
async def chat(body: ChatRequest, request: Request) -> Response:
    """Answer a conversation; a last message of the assistant is continued."""
    return await openai.chat(_prefilled(body), request)


@router.post("/apply-template")
async def apply_template(body: ChatRequest, request: Request) -> Response:
    """The prompt of a conversation as text, special tokens spelled out; nothing is generated."""
    return Json(
        {"prompt": await rendered(body, request, lambda llm, ids: llm.tokenizer.decode(ids, special=True))}
    )


@router.post("/v1/chat/completions/input_tokens")
@router.post("/chat/completions/input_tokens")
async def input_tokens(body: ChatRequest, request: Request) -> Response:
    """The number of tokens of a conversation; nothing is generated."""
    return Json({"input_tokens": await rendered(body, request, lambda llm, ids: len(ids))})


def _prefilled(body: ChatRequest) -> ChatRequest:
    """The request as llama-server takes it: with `continue_final_message`, if the assistant spoke last."""
    if body.continue_final_message is not None or body.add_generation_prompt is not None:
        return body
    last, before = body.messages[-1], body.messages[-2:-1]
    if last.role != "assistant" or last.tool_calls or not last.content:
        return body
    if any(message.role == "assistant" for message in before):
        at = f"messages[{len(body.messages) - 1}]"
        raise ApiError(
            400, f"{at} and the one before it are both the assistant's; one can be continued", param=at
        )
    return body.model_copy(update={"continue_final_message": True})


async def rendered(body: ChatRequest, request: Request, view: Callable[[LLM, list[int]], Value]) -> Value:
    """A view of the prompt of a conversation, made in a thread."""
    state = state_of(request)
    chat = with_tools(body if request.url.path.startswith("/v1/") else _prefilled(body))
    generation = await begin(state, body.model, request)
    try:
        llm = generation.lease.llm
        _, prompt = await unless_gone(request, planned(chat, generation, state.settings))
        return await asyncio.to_thread(lambda: view(llm, ids_of(llm, prompt)))
    except Exception as error:
        raise translate(error, "messages") from error
    finally:
        generation.close()
