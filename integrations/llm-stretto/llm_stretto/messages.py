"""Conversations and tools, from llm's objects to what `llm.chat` of Stretto takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import llm
from llm.parts import AttachmentPart, Message, ReasoningPart, TextPart, ToolCallPart, ToolResultPart

import stretto


def conversation(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """The messages of a chat; each result of a tool is a message of its own."""
    return [made for message in messages for made in _messages(message)]


def _messages(message: Message) -> Iterator[dict[str, Any]]:
    results = [part for part in message.parts if isinstance(part, ToolResultPart)]
    for part in results:
        yield {"role": "tool", "name": part.name, "tool_call_id": part.tool_call_id, "content": part.output}
    if results:
        return
    made: dict[str, Any] = {"role": message.role, "content": _content(message)}
    if calls := [part for part in message.parts if isinstance(part, ToolCallPart)]:
        made["tool_calls"] = [_call(part) for part in calls]
    if reasoning := "".join(part.text for part in message.parts if isinstance(part, ReasoningPart)):
        made["reasoning_content"] = reasoning
    yield made


def _content(message: Message) -> str | list[Any]:
    """Text, or a list of texts and images."""
    parts: list[Any] = []
    for part in message.parts:
        if isinstance(part, TextPart):
            parts.append({"type": "text", "text": part.text})
        elif isinstance(part, AttachmentPart) and part.attachment is not None:
            data = part.attachment.content_bytes()  # type: ignore[no-untyped-call]
            parts.append(stretto.Image.open(data))
    if all(isinstance(part, dict) for part in parts):
        return "\n".join(part["text"] for part in parts)
    return parts


def _call(part: ToolCallPart) -> dict[str, Any]:
    function = {"name": part.name, "arguments": part.arguments}
    return {"id": part.tool_call_id, "type": "function", "function": function}


def tool_descriptions(tools: Iterable[object]) -> list[dict[str, Any]]:
    """Tools as OpenAI describes them; those that another server would run are none of ours."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description or "",
                "parameters": tool.input_schema or {"type": "object", "properties": {}},
            },
        }
        for tool in tools
        if isinstance(tool, llm.Tool)
    ]
