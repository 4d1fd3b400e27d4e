"""llama-server's paths for conversations: OpenAI's endpoints without `/v1`, and `/apply-template`."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from starlette.responses import Response

from stretto.llm import LLM
from stretto.server import openai
from stretto.server.chat import Prompt
from stretto.server.conversation import planned
from stretto.server.embedding import ids_of
from stretto.server.errors import Json, translate
from stretto.server.generation import begin, unless_gone
from stretto.server.legacy import with_tools
from stretto.server.llama_server import default_model
from stretto.server.schemas import ChatRequest, Name
from stretto.server.state import state_of

router = APIRouter(tags=["llama-server"])

router.get("/models")(openai.models)
router.post("/completions")(openai.completions)
router.post("/chat/completions")(openai.chat)
router.post("/embeddings")(openai.embeddings)


class TemplateRequest(ChatRequest):
    """`POST /apply-template`."""

    model: Name = ""


@router.post("/apply-template")
async def apply_template(body: TemplateRequest, request: Request) -> Response:
    """The prompt of a conversation as text, special tokens spelled out; nothing is generated."""
    state = state_of(request)
    chat = with_tools(body)
    generation = await begin(state, default_model(state, body.model or None), request)
    try:
        _, prompt = await unless_gone(request, planned(chat, generation, state.settings))
        text = await asyncio.to_thread(_text, generation.lease.llm, prompt)
    except Exception as error:
        raise translate(error, "messages") from error
    finally:
        generation.close()
    return Json({"prompt": text})


def _text(llm: LLM, prompt: Prompt) -> str:
    return llm.tokenizer.decode(ids_of(llm, prompt), special=True)
