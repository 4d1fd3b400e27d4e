"""Conversations: from the messages of a request to a prompt, and what an answer has to look like."""

from __future__ import annotations

import asyncio
from typing import Any

from stretto.llm import LLM
from stretto.server.errors import unsupported
from stretto.server.options import check_prompts
from stretto.server.schemas import ChatRequest, ImagePart, Message
from stretto.server.settings import Settings
from stretto.tools.plan import ToolPlan


async def prompt_of(body: ChatRequest, llm: LLM, settings: Settings, plan: ToolPlan) -> Any:
    """The prompt of a conversation, made in a thread: templates and tokenizers take their time."""
    messages = [as_message(message, index) for index, message in enumerate(body.messages)]
    name_answers(messages)
    return await rendered(llm, messages, settings, plan)


async def rendered(llm: LLM, messages: list[dict[str, Any]], settings: Settings, plan: ToolPlan) -> Any:
    """Messages as the model reads them."""
    check_prompts("messages", ["".join(_texts(messages))], settings.limits)
    return await asyncio.to_thread(llm.chat_prompt, messages, tools=plan.shown)


def as_message(message: Message, index: int) -> dict[str, Any]:
    """A message as templates know it: what was not said is not there."""
    said: dict[str, Any] = {"role": "system" if message.role == "developer" else message.role}
    content = message.content
    if isinstance(content, list):
        if any(isinstance(part, ImagePart) for part in content):
            raise unsupported("images are not supported by this model", f"messages[{index}].content")
        content = "\n".join(part.text for part in content if not isinstance(part, ImagePart))
    if content is not None:
        said["content"] = content
    for name in ("name", "tool_call_id", "reasoning_content"):
        if (value := getattr(message, name)) is not None:
            said[name] = value
    if message.tool_calls:
        said["tool_calls"] = [call.model_dump() for call in message.tool_calls]
        said.setdefault("content", "")
    if message.refusal is not None:
        said.setdefault("content", message.refusal)
    return said


def name_answers(messages: list[dict[str, Any]]) -> None:
    """Give answers of tools the name of the function, which some templates show, and clients leave out."""
    names: dict[str, str] = {}
    for message in messages:
        names.update({call["id"]: call["function"]["name"] for call in message.get("tool_calls", ())})
        if message["role"] == "tool" and message.get("tool_call_id") in names:
            message.setdefault("name", names[message["tool_call_id"]])


async def ollama_prompt(
    llm: LLM,
    messages: list[dict[str, Any]],
    pictures: dict[int, list[str]],
    plan: ToolPlan,
    settings: Settings,
) -> Any:
    """The prompt of a conversation with one of Ollama's clients."""
    if any(pictures.values()):
        raise unsupported("images are not supported by this model", "images")
    return await rendered(llm, messages, settings, plan)


def _texts(messages: list[dict[str, Any]]) -> list[str]:
    return [text for message in messages if isinstance(text := message.get("content"), str)]
