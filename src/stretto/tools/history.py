"""Messages in the shape that a template takes: calls, their answers, and tools that it does not show itself.

A template's needs are found by rendering short conversations, once for each template.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from stretto.errors import StrettoError
from stretto.text.template import ChatTemplate
from stretto.text.tokenizer import Tokenizer
from stretto.tools.finding import Shown, call_format, in_system
from stretto.tools.format import CallFormat, spelled
from stretto.tools.formats import GENERIC
from stretto.tools.writing import write_call, write_calls

Messages = Sequence[Mapping[str, Any]]

_USER = {"role": "user", "content": "x"}
_NAME, _KEY, _VALUE, _ANSWER = "stretto_function", "stretto_key", "stretto_value", "stretto_answer"
_TOOL = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "x",
        "parameters": {"type": "object", "properties": {_KEY: {"type": "string"}}},
    },
}


@dataclass(frozen=True)
class Shape:
    """What a template does with calls.

    It takes arguments as text if `as_text`, or as objects; it leaves calls out unless `has_calls`, and their
    answers unless `has_answers`.
    """

    as_text: bool = False
    has_calls: bool = True
    has_answers: bool = True


_shapes: WeakKeyDictionary[ChatTemplate, Shape] = WeakKeyDictionary()


def fit_calls(
    template: ChatTemplate, tokenizer: Tokenizer, messages: Messages, tools: Shown | None
) -> tuple[Messages, Shown | None]:
    """Messages and tools as the template takes them."""
    if not isinstance(messages, (list, tuple)):
        return messages, tools
    has_calls = any(_is_tool_message(message) for message in messages)
    if not tools and not has_calls:
        return messages, tools
    layout = call_format(template, tokenizer, tools) if tools else None
    if has_calls:
        messages = _with_calls(template, tokenizer, messages, layout)
    if not tools or layout is None:
        return messages, tools
    if layout.is_described:
        return _with_system(messages, description(spelled(layout, tokenizer), tools)), None
    if in_system(template):
        return _with_tools_in_system(messages, tools), tools
    return messages, tools


def description(layout: CallFormat, tools: Shown) -> str:
    """Tools, and how to call them, for a model whose template shows none."""
    lines = [json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools]
    example = write_call(layout, ("function_name", {"argument_name": "value"}, "000000000"))
    return (
        "You can call these functions, each described by a JSON object with a schema of its parameters:\n"
        + "\n".join(lines)
        + "\n\nTo call a function, answer with nothing but the call, in this format:\n"
        + layout.opening
        + example
        + layout.closing
        + "\nIf no function is needed, answer as usual."
    )


def shape_of(template: ChatTemplate) -> Shape:
    """What a template does with calls and their answers."""
    found = _shapes.get(template)
    if found is None:
        found = _shapes[template] = _probe(template)
    return found


def _probe(template: ChatTemplate) -> Shape:
    for as_text in (False, True):
        text = _rendered(template, as_text)
        if text is None or _NAME not in text or _VALUE not in text or f"{{'{_KEY}'" in text:
            continue
        if f'\\"{_KEY}' in text and not as_text:
            continue  # it writes JSON as a string
        return Shape(as_text, True, _ANSWER in text)
    return Shape(has_calls=False, has_answers=_ANSWER in (_rendered(template, None) or ""))


def _rendered(template: ChatTemplate, as_text: bool | None) -> str | None:
    """A conversation with a call, or without it if None, and its answer."""
    arguments: Any = {_KEY: _VALUE}
    arguments = json.dumps(arguments) if as_text else arguments
    call = {"id": "Stretto01", "type": "function", "function": {"name": _NAME, "arguments": arguments}}
    turn = {"role": "assistant", "content": "" if as_text is not None else "y"}
    if as_text is not None:
        turn["tool_calls"] = [call]  # type: ignore[assignment]
    answer = {"role": "tool", "name": _NAME, "tool_call_id": "Stretto01", "content": _ANSWER}
    for tools in ([_TOOL], None):
        with suppress(StrettoError):
            text = template.render([_USER, turn, answer], tools=tools)
            # The tool's own description is no sign that calls are written.
            return text.replace(template.render([_USER], tools=tools, add_generation_prompt=False), "")
    return None


def _with_calls(
    template: ChatTemplate, tokenizer: Tokenizer, messages: Messages, layout: CallFormat | None
) -> Messages:
    shape = shape_of(template)
    writes = GENERIC if layout is None else spelled(layout, tokenizer)
    return list(_fitted(messages, shape, writes))


def _fitted(messages: Messages, shape: Shape, layout: CallFormat) -> Iterator[Mapping[str, Any]]:
    for message in messages:
        if not _is_tool_message(message):
            yield message
        elif message.get("tool_calls"):
            yield _with_arguments(message, shape.as_text) if shape.has_calls else _written(message, layout)
        elif shape.has_answers:
            yield message
        else:
            name = message.get("name") or message.get("tool_name") or "function"
            yield {"role": "user", "content": f"Result of {name}: {message.get('content')}"}


def _is_tool_message(message: object) -> bool:
    return isinstance(message, Mapping) and bool(message.get("tool_calls") or message.get("role") == "tool")


def _with_arguments(message: Mapping[str, Any], as_text: bool) -> Mapping[str, Any]:
    """A message whose calls have their arguments as text, or as objects."""
    calls = message["tool_calls"]
    if not isinstance(calls, (list, tuple)):
        return message
    changed = []
    for call in calls:
        function = call.get("function") if isinstance(call, Mapping) else None
        if isinstance(function, Mapping) and "arguments" in function:
            call = {**call, "function": {**function, "arguments": _arguments(function["arguments"], as_text)}}
        changed.append(call)
    return {**message, "tool_calls": changed}


def _arguments(arguments: Any, as_text: bool) -> Any:
    if as_text and not isinstance(arguments, str):
        return json.dumps(arguments, ensure_ascii=False)
    if not as_text and isinstance(arguments, str):
        with suppress(ValueError):  # a text that is not JSON is passed on as it is
            return json.loads(arguments)
    return arguments


def _written(message: Mapping[str, Any], layout: CallFormat) -> Mapping[str, Any]:
    """A message whose calls are part of its text, for a template that leaves them out."""
    calls = []
    for call in message["tool_calls"]:
        function = call.get("function", call)
        arguments = _arguments(function.get("arguments"), as_text=False)
        given = call.get("id")
        arguments = arguments if isinstance(arguments, Mapping) else {}
        calls.append((str(function.get("name")), arguments, given if isinstance(given, str) else ""))
    rest = {key: value for key, value in message.items() if key != "tool_calls"}
    text = message.get("content")
    said = f"{text}\n" if isinstance(text, str) and text else ""
    return {**rest, "content": said + write_calls(layout, calls)}


def _with_system(messages: Messages, text: str) -> Messages:
    """Messages with a text at the end of the system message."""
    first = messages[0] if messages else {}
    is_system = isinstance(first, Mapping) and first.get("role") in ("system", "developer")
    if is_system and isinstance(first.get("content"), str):
        return [{**first, "content": f"{first['content']}\n\n{text}"}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def _with_tools_in_system(messages: Messages, tools: Shown) -> Messages:
    """Messages whose system message has the tools as JSON, where a template looks for them there."""
    first = messages[0] if messages else {}
    shown = json.dumps([tool.get("function", tool) for tool in tools], ensure_ascii=False)
    if isinstance(first, Mapping) and first.get("role") == "system":
        return [{**first, "tools": shown}, *messages[1:]]
    return [{"role": "system", "content": "", "tools": shown}, *messages]
