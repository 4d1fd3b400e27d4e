"""Conversations that end within a message of the assistant: the model goes on where its text ends.

The text gets a mark at its end, and what the template writes from the mark on is left out. So whatever a
template does with the text before it (reasoning, white space), the prompt is what the model has seen there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stretto.errors import InvalidRequest
from stretto.text.arguments import FIELDS

MARK = "\u2063stretto\u2063end\u2063"  # between invisible separators; the last one found is ours


def with_end(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The messages, with a mark at the end of the last one's text, or of its reasoning if it has no text."""
    last = messages[-1] if isinstance(messages, (list, tuple)) and messages else None
    text = last.get("content") if isinstance(last, Mapping) else None
    name = begun_reasoning(messages)
    if isinstance(last, Mapping) and name and _is_answer(last):
        return [*messages[:-1], {**last, "content": "", name: last[name] + MARK}]
    if not isinstance(last, Mapping) or not isinstance(text, str) or not _is_answer(last):
        raise InvalidRequest(
            "the last message cannot be continued: it has to be one of the assistant, with a text and "
            "without tool calls",
            param="messages",
        )
    return [*messages[:-1], {**last, "content": text + MARK}]


def begun_reasoning(messages: Sequence[Mapping[str, Any]]) -> str:
    """The field of the reasoning with which a conversation ends; empty if it ends with anything else."""
    last = messages[-1] if isinstance(messages, (list, tuple)) and messages else None
    if not isinstance(last, Mapping) or last.get("content"):
        return ""
    return next((name for name in FIELDS if last.get(name) and isinstance(last[name], str)), "")


def _is_answer(message: Mapping[str, Any]) -> bool:
    return message.get("role") == "assistant" and not message.get("tool_calls")


def before_end(parts: Sequence[Any]) -> list[Any]:
    """The parts of a rendered conversation before the mark."""
    for at in range(len(parts) - 1, -1, -1):
        if isinstance(part := parts[at], str) and MARK in part:
            text = part[: part.rindex(MARK)]
            return [*parts[:at], *([text] if text else [])]
    raise InvalidRequest(
        "this model's chat template does not write the last message as it is, so it cannot be continued",
        param="messages",
    )
