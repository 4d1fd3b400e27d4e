"""The items of `/v1/responses` as messages of a chat request, the form that the server works with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from stretto.server.errors import ApiError
from stretto.server.responses_schemas import (
    AllowedTools,
    CallItem,
    FunctionChoice,
    FunctionTool,
    InputImage,
    InputText,
    InputTokensRequest,
    MessageItem,
    OutputText,
    ReasoningItem,
    ResponseRequest,
    ResultItem,
    SchemaText,
)
from stretto.server.schema_base import plain_options
from stretto.server.schemas import ChatRequest

Fields = dict[str, Any]
AnyItem = MessageItem | CallItem | ResultItem | ReasoningItem

# Fields of a chat request, and those of a response that set them: for errors.
NAMES = {
    "messages": "input",
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
    "grammar": "text.format",
    "max_tokens": "max_output_tokens",
}


def items_of(body: InputTokensRequest) -> list[AnyItem]:
    """The items of the input."""
    if isinstance(body.input, str):
        return [MessageItem(role="user", content=body.input)]
    return list(body.input)


def as_chat(body: InputTokensRequest, items: Sequence[AnyItem]) -> ChatRequest:
    """The chat request that asks for the same; `items` are those of the whole conversation."""
    system = [{"role": "system", "content": body.instructions}] if body.instructions else []
    messages = [*system, *messages_of(items)]
    if not messages:
        raise ApiError(400, "input is empty; there is nothing to answer", param="input", code="invalid_value")
    fields: Fields = {
        "model": body.model,
        "messages": messages,
        **_tools(body),
        "parallel_tool_calls": body.parallel_tool_calls,
        "reasoning_effort": body.reasoning.effort if body.reasoning is not None else None,
        "response_format": _format(body),
        "chat_template_kwargs": body.chat_template_kwargs,
    }
    if isinstance(body, ResponseRequest):
        fields |= plain_options(body)
        fields |= {name: getattr(body, name) for name in ("seed", "stream", "return_progress")}
        fields |= {"user": body.user, "max_tokens": body.max_output_tokens, "logprobs": has_logprobs(body)}
        fields["top_logprobs"] = body.top_logprobs if fields["logprobs"] else None
    return ChatRequest.model_validate(fields)


def has_logprobs(body: ResponseRequest) -> bool:
    """Whether log-probabilities are asked for."""
    return bool(body.top_logprobs) or "message.output_text.logprobs" in (body.include or ())


def messages_of(items: Iterable[AnyItem]) -> list[Fields]:
    """Items as messages: reasoning, text and calls in a row are one message of the assistant."""
    messages: list[Fields] = []
    for item in items:
        match item:
            case ReasoningItem():
                thoughts = "\n".join(one.text for one in item.content or item.summary)
                _turn(messages, "reasoning_content")["reasoning_content"] = thoughts
            case CallItem():
                function = {"name": item.name, "arguments": item.arguments}
                call = {"id": item.call_id, "type": "function", "function": function}
                _turn(messages, "").setdefault("tool_calls", []).append(call)
            case ResultItem():
                messages += _result(item)
            case MessageItem() if item.role == "assistant":
                _turn(messages, "content")["content"] = _text(item.content)
            case _:
                messages.append({"role": item.role, "content": _content(item.content)})
    return messages


def _turn(messages: list[Fields], field: str) -> Fields:
    """The message of the assistant that goes on, or a new one: what is said comes after thoughts."""
    order = ("reasoning_content", "content", "tool_calls")
    last = messages[-1] if messages and messages[-1]["role"] == "assistant" else None
    later = order[order.index(field) :] if field else ()
    if last is None or any(name in last for name in later):
        last = {"role": "assistant"}
        messages.append(last)
    return last


def _result(item: ResultItem) -> list[Fields]:
    """The answer to a call; its images come in a message of the user's, where templates know them."""
    if isinstance(item.output, str):
        return [{"role": "tool", "tool_call_id": item.call_id, "content": item.output}]
    images = [part for part in item.output if isinstance(part, InputImage)]
    text = "\n".join(part.text for part in item.output if isinstance(part, InputText))
    seen = [{"role": "user", "content": _content(images)}] if images else []
    return [{"role": "tool", "tool_call_id": item.call_id, "content": text}, *seen]


def _content(content: str | Iterable[Any]) -> str | list[Fields]:
    if isinstance(content, str):
        return content
    parts: list[Fields] = []
    for part in content:
        if isinstance(part, InputImage):
            parts.append({"type": "image_url", "image_url": {"url": part.image_url}})
        else:
            parts.append({"type": "text", "text": _said(part)})
    return parts


def _text(content: str | Iterable[Any]) -> str:
    if isinstance(content, str):
        return content
    for at, part in enumerate(content):
        if isinstance(part, InputImage):
            raise ApiError(400, f"input: content[{at}] of an assistant's message is an image", param="input")
    return "".join(_said(part) for part in content)


def _said(part: Any) -> str:
    return part.text if isinstance(part, (InputText, OutputText)) else str(part.refusal)


def _tools(body: InputTokensRequest) -> Fields:
    tools, choice = body.tools or [], body.tool_choice
    wanted: Any = choice
    if isinstance(choice, AllowedTools):
        names = {one.name for one in choice.tools}
        if missing := names - {tool.name for tool in tools}:
            message = f"tool_choice allows {min(missing)!r}, which tools does not have"
            raise ApiError(400, message, param="tool_choice", code="invalid_value")
        tools, wanted = [tool for tool in tools if tool.name in names], choice.mode
    elif isinstance(choice, FunctionChoice):
        wanted = {"type": "function", "function": {"name": choice.name}}
    if not tools:
        return {"tool_choice": None if wanted in ("auto", "none") else wanted}
    return {"tools": [_tool(tool) for tool in tools], "tool_choice": wanted}


def _tool(tool: FunctionTool) -> Fields:
    fields = ("name", "description", "parameters", "strict")
    return {"type": "function", "function": {name: getattr(tool, name) for name in fields}}


def _format(body: InputTokensRequest) -> Fields | None:
    wanted = body.text.format if body.text is not None else None
    if not isinstance(wanted, SchemaText):
        return None if wanted is None else wanted.model_dump(by_alias=True, exclude_none=True)
    schema = wanted.model_dump(by_alias=True, exclude={"type"}, exclude_none=True)
    return {"type": "json_schema", "json_schema": schema}
