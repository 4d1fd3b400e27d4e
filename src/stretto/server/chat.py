"""Conversations: from the messages of a request to a prompt, and what an answer has to look like."""

from __future__ import annotations

import asyncio
from typing import Any

from stretto.llm import LLM
from stretto.server.errors import unsupported
from stretto.server.options import check_prompts
from stretto.server.schemas import ChatRequest, ImagePart, Message
from stretto.server.settings import Settings


async def prompt_of(body: ChatRequest, llm: LLM, settings: Settings) -> Any:
    """The prompt of a conversation, made in a thread: templates and tokenizers take their time."""
    messages = [as_message(message, index) for index, message in enumerate(body.messages)]
    check_prompts("messages", ["".join(_texts(messages))], settings.limits)
    return await asyncio.to_thread(llm.chat_prompt, messages)


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
    return said


def check_tools(body: ChatRequest) -> None:
    """Tools are not there yet."""
    for name in ("tools", "tool_choice"):
        if getattr(body, name) is not None:
            raise unsupported(f"{name} is not supported yet", name)


async def ollama_prompt(
    llm: LLM,
    messages: list[dict[str, Any]],
    pictures: dict[int, list[str]],
    tools: list[dict[str, Any]] | None,
    settings: Settings,
) -> Any:
    """The prompt of a conversation with one of Ollama's clients."""
    if tools:
        raise unsupported("tools are not supported yet", "tools")
    if any(pictures.values()):
        raise unsupported("images are not supported by this model", "images")
    return await asyncio.to_thread(llm.chat_prompt, messages)


def _texts(messages: list[dict[str, Any]]) -> list[str]:
    return [text for message in messages if isinstance(text := message.get("content"), str)]
