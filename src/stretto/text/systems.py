"""System messages that a template drops or refuses: they become part of the first turn of the user.

Found by rendering a short conversation with a system message, once for each template.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from stretto.errors import StrettoError
from stretto.text.template import ChatTemplate

Messages = Sequence[Mapping[str, Any]]

SYSTEM = ("system", "developer")
_MARK = "stretto_system_text"
_takes: WeakKeyDictionary[ChatTemplate, dict[tuple[str, bool], bool]] = WeakKeyDictionary()


def fit_system(template: ChatTemplate, messages: Messages, has_tools: bool = False) -> Messages:
    """Messages in which no system message is lost.

    A developer's message is a system message where the template knows no developers.
    """
    if not isinstance(messages, (list, tuple)) or not any(map(_is_system, messages)):
        return messages
    if not _takes_role(template, "developer", has_tools):
        messages = [{**message, "role": "system"} if _is_system(message) else message for message in messages]
    if _takes_role(template, "system", has_tools) and not _loses_after_tools(template, messages, has_tools):
        return messages
    return merged(messages)


def merged(messages: Messages) -> Messages:
    """Messages with each system message at the start of the next turn of the user.

    >>> merged([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}])
    [{'role': 'user', 'content': 'Be brief.\\n\\nHi'}]
    """
    found: list[Mapping[str, Any]] = []
    waiting: list[str] = []
    for message in messages:
        if _is_system(message):
            waiting.append(_text(message.get("content")))
        elif waiting and message.get("role") == "user":
            found.append({**message, "content": _after("\n\n".join(waiting), message.get("content"))})
            waiting = []
        else:
            found.append(message)
    if waiting:  # nobody speaks after it
        found.append({"role": "user", "content": "\n\n".join(waiting)})
    return found


def _takes_role(template: ChatTemplate, role: str, has_tools: bool) -> bool:
    """Whether a template writes a message of a role."""
    known = _takes.setdefault(template, {})
    if (role, has_tools) not in known:
        messages = [{"role": role, "content": _MARK}, {"role": "user", "content": "x"}]
        tools = [{"type": "function", "function": _FUNCTION}] if has_tools else None
        try:
            known[role, has_tools] = _MARK in template.render(messages, tools=tools)
        except StrettoError:
            known[role, has_tools] = False
    return known[role, has_tools]


_FUNCTION = {"name": "f", "description": "x", "parameters": {"type": "object", "properties": {}}}


def _loses_after_tools(template: ChatTemplate, messages: Messages, has_tools: bool) -> bool:
    """Whether a template that takes system messages drops them where a tool has spoken last."""
    if messages[-1].get("role") != "tool":
        return False
    known = _takes.setdefault(template, {})
    if ("tool", has_tools) not in known:
        call = {"id": "Stretto01", "type": "function", "function": {"name": "f", "arguments": {}}}
        turns: list[dict[str, Any]] = [
            {"role": "system", "content": _MARK},
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "name": "f", "tool_call_id": "Stretto01", "content": "x"},
        ]
        tools = [{"type": "function", "function": _FUNCTION}] if has_tools else None
        try:
            known["tool", has_tools] = _MARK not in template.render(turns, tools=tools)
        except StrettoError:
            known["tool", has_tools] = False
    return known["tool", has_tools]


def _is_system(message: object) -> bool:
    return isinstance(message, Mapping) and message.get("role") in SYSTEM


def _text(content: Any) -> str:
    if isinstance(content, (list, tuple)):
        parts = [part.get("text", "") if isinstance(part, Mapping) else part for part in content]
        return "\n".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else ""


def _after(text: str, content: Any) -> Any:
    """The content of a message with a text before it."""
    if isinstance(content, (list, tuple)):
        return [{"type": "text", "text": f"{text}\n\n"}, *content]
    return f"{text}\n\n{content}" if content else text
