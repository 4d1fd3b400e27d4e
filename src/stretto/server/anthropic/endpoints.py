"""`/v1/messages`: Anthropic's endpoints."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from contextlib import suppress
from itertools import takewhile
from typing import Any

from fastapi import Request
from starlette.responses import Response

from stretto.errors import StrettoError, Unsupported
from stretto.llm import LLM
from stretto.server.anthropic.answers import MessageAnswer
from stretto.server.anthropic.context import edit_context
from stretto.server.anthropic.schemas import (
    AnthropicMessage,
    AnthropicTool,
    Base64Source,
    CountRequest,
    DocumentBlock,
    FreeChoice,
    ImageBlock,
    MessagesRequest,
    NoChoice,
    TextBlock,
    ThinkingBlock,
    ToolChoice,
    ToolResultBlock,
    ToolUseBlock,
)
from stretto.server.generation.answer import respond, start_answer
from stretto.server.generation.chat import (
    Warn,
    converse,
    encode_chat,
    find_thinking,
    read_chat_options,
    rename_fields,
)
from stretto.server.generation.generation import Generation, lease_model
from stretto.server.generation.kept import keep_prefixes
from stretto.server.generation.options import plain_options
from stretto.server.generation.requests import ChatRequest
from stretto.server.http.bodies import make_router
from stretto.server.http.errors import NO_THREADS, ApiError, Json, field_error
from stretto.server.http.state import get_state

# Anthropic's messages as a chat request in OpenAI's form, which is the form that the server works with.

Fields = dict[str, Any]

# The line that Claude Code puts before its system prompt: a block of its own, or the first line of the text.
BILLING_LINE = re.compile(r"x-anthropic-billing-header: (?:[a-z_]+=[^;\s]{1,200}; ?){1,16}\n*")
BILLING = "x-anthropic-billing-header"

# Fields of a chat request, and those of Anthropic's that set them: for errors.
NAMES = {
    "response_format": "output_config.format",
    "grammar": "output_config.format",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
    "stop": "stop_sequences",
}
EFFORTS = {"max": "xhigh"}


def without_billing(system: str | list[TextBlock] | None) -> str | list[TextBlock] | None:
    """A system prompt without Claude Code's billing line at its start, which changes with every request.

    >>> without_billing("x-anthropic-billing-header: cc_version=2.1; cch=0a1b2;\\nBe brief.")
    'Be brief.'
    """
    text = system if isinstance(system, str) else system[0].text if system else ""
    found = BILLING_LINE.match(text)
    if found is None or not (found.end() == len(text) or found[0].endswith("\n")):
        return system
    rest = text[found.end() :]
    if isinstance(system, list):
        return [TextBlock(type="text", text=rest), *system[1:]] if rest else system[1:]
    return rest


def has_billing(body: CountRequest) -> bool:
    """Whether the system prompt begins with Claude Code's billing line."""
    return without_billing(body.system) is not body.system


def as_chat(body: CountRequest, keep_billing: bool = False) -> ChatRequest:
    """The chat request that asks for the same, without Claude Code's billing line."""
    system = body.system if keep_billing else without_billing(body.system)
    messages = [{"role": "system", "content": _joined(system)}] if system else []
    for index, message in enumerate(body.messages):
        messages += _messages(message, index)
    fields: Fields = {
        "model": body.model,
        "messages": messages,
        **_ending(body, messages[-1]),
        "tools": [_tool(tool) for tool in body.tools] if body.tools else None,
        **_choice(body),
        **_format(body),
    }
    if isinstance(body, MessagesRequest):
        fields |= {
            **plain_options(body),
            "stop": body.stop_sequences,
            "stream": body.stream,
            "thinking_budget_tokens": None if body.thinking is None else body.thinking.budget_tokens,
            "user": body.metadata.user_id if body.metadata is not None else None,
        }
    return ChatRequest.model_validate(fields)


def _ending(body: CountRequest, last: Fields) -> Fields:
    """An answer that has begun is continued; calls without their results may be counted, not continued."""
    if last["role"] != "assistant":
        return {}
    if last.get("tool_calls") and not isinstance(body, MessagesRequest):
        return {"add_generation_prompt": False}
    return {"continue_final_message": True}


def thinking_arguments(body: CountRequest, llm: LLM, warn: Warn = lambda param, message: None) -> Fields:
    """The template arguments for `thinking` and `output_config.effort`.

    The effort is a hint: a template that has no such setting gets none. It turns no thinking on.
    """
    effort = body.output_config.effort if body.output_config is not None else None
    wanted = None if body.thinking is None else body.thinking.type
    found: Fields = {}
    if effort is not None and wanted != "disabled":
        with suppress(Unsupported):
            found = llm.thinking(EFFORTS.get(effort, effort))
        found = {name: value for name, value in found.items() if isinstance(value, str)}
    if wanted in ("enabled", "disabled"):
        found = find_thinking(llm, wanted == "enabled", "thinking", warn) | found
    return found


def _messages(message: AnthropicMessage, index: int) -> list[Fields]:
    """A message as those of a chat: answers to calls are messages of their own, before what the user says."""
    content = message.content
    if isinstance(content, str):
        return [{"role": message.role, "content": content}]
    if message.role == "assistant":
        return [_answer(content, index)]
    allowed = (TextBlock, ImageBlock, DocumentBlock, ToolResultBlock)
    for at, block in enumerate(content):
        if not isinstance(block, allowed if message.role == "user" else TextBlock):
            raise _misplaced(block.type, message.role, index, at)
    results = [block for block in content if isinstance(block, ToolResultBlock)]
    images = [part for block in results for part in _parts(block) if isinstance(part, ImageBlock)]
    blocks = (*images, *content)
    said = [_part(one) for one in blocks if isinstance(one, (TextBlock, ImageBlock, DocumentBlock))]
    found = [_result(block) for block in results]
    return [*found, {"role": message.role, "content": said}] if said or not found else found


def _answer(content: Iterable[Any], index: int) -> Fields:
    """A message of the assistant."""
    fields: Fields = {"role": "assistant", "content": ""}
    calls: list[Fields] = []
    for at, block in enumerate(content):
        match block:
            case TextBlock():
                fields["content"] += block.text
            case ThinkingBlock():
                fields["reasoning_content"] = fields.get("reasoning_content", "") + block.thinking
            case ToolUseBlock():
                arguments = json.dumps(block.input, ensure_ascii=False)
                function = {"name": block.name, "arguments": arguments}
                calls.append({"id": block.id, "type": "function", "function": function})
            case ImageBlock() | DocumentBlock() | ToolResultBlock():
                raise _misplaced(block.type, "assistant", index, at)
    return {**fields, "tool_calls": calls} if calls else fields


def _result(block: ToolResultBlock) -> Fields:
    """The answer to a call; its images come with the user's next message, where templates know them."""
    text = _joined([part for part in _parts(block) if not isinstance(part, ImageBlock)])
    text = f"Error: {text}" if block.is_error else text
    return {"role": "tool", "tool_call_id": block.tool_use_id, "content": text}


def _parts(block: ToolResultBlock) -> list[Any]:
    if isinstance(block.content, str):
        return [TextBlock(type="text", text=block.content)]
    return list(block.content or ())


def _part(block: TextBlock | ImageBlock | DocumentBlock) -> Fields:
    if not isinstance(block, ImageBlock):
        return {"type": "text", "text": _text(block)}
    source = block.source
    if isinstance(source, Base64Source):
        return {"type": "image_url", "image_url": {"url": f"data:{source.media_type};base64,{source.data}"}}
    return {"type": "image_url", "image_url": {"url": source.url}}


def _text(block: TextBlock | DocumentBlock) -> str:
    if isinstance(block, TextBlock):
        return block.text
    return "\n".join(filter(None, (block.title, block.context, block.source.data)))


def _joined(content: str | Iterable[Any] | None) -> str:
    if isinstance(content, str):
        return content
    blocks: Iterable[Any] = content or ()
    return "\n".join(_text(block) for block in blocks)


def _tool(tool: AnthropicTool) -> Fields:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
    return {"type": "function", "function": function}


def _choice(body: CountRequest) -> Fields:
    choice = body.tool_choice
    match choice:
        case None:
            return {}
        case NoChoice():
            return {"tool_choice": "none"}
        case ToolChoice():
            wanted: Any = {"type": "function", "function": {"name": choice.name}}
        case FreeChoice():
            wanted = "required" if choice.type == "any" else "auto"
    disabled = choice.disable_parallel_tool_use
    return {"tool_choice": wanted, "parallel_tool_calls": None if disabled is None else not disabled}


def _format(body: CountRequest) -> Fields:
    if body.output_config is None or body.output_config.format is None:
        return {}
    schema = {"name": "answer", "schema": body.output_config.format.schema_}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


def _misplaced(kind: str, role: str, index: int, at: int) -> ApiError:
    param = f"messages[{index}].content[{at}].type"
    return field_error(param, f"{param}: a message of the {role} has no {kind} blocks")


FIELDS = ("messages", "output_config.format")  # that hold the prompt and the grammar

router = make_router("Anthropic")


async def edited_chat(
    body: CountRequest, chat: ChatRequest, generation: Generation, request: Request, thinking: Fields
) -> tuple[ChatRequest, list[Fields] | None]:
    """The chat request after the edits that the body asks for, and those applied; None if it has none."""
    if body.context_management is None:
        return chat, None

    def shortened(messages: list[AnthropicMessage]) -> ChatRequest:
        changed = body.model_copy(update={"messages": messages})
        return as_chat(changed, get_state(request).settings.billing_line)

    async def count(messages: list[AnthropicMessage]) -> int:
        return len(await encode_chat(shortened(messages), generation, request, thinking))

    messages, applied = await edit_context(body.messages, body.context_management.edits, count)
    return (shortened(messages) if applied else chat), applied


TTL_SECONDS = {None: 300.0, "5m": 300.0, "1h": 3600.0}


def find_breakpoints(body: CountRequest) -> list[tuple[int, float]]:
    """The `cache_control` of a body that counts: how many messages stand before it, and for how long it is.

    A later one has what is before it too, so an earlier one counts only where it is for longer.
    """
    found = [(0, block.cache_control) for block in (*(body.tools or ()), *_blocks(body.system))]
    for at, message in enumerate(body.messages, 1):
        found += [(at, getattr(block, "cache_control", None)) for block in _blocks(message.content)]
    found.append((len(body.messages), body.cache_control))
    last: dict[float, int] = {}
    for at, control in found:
        if control is not None:
            last[TTL_SECONDS[control.ttl]] = at
    counted: list[tuple[int, float]] = []
    for seconds, at in sorted(last.items(), reverse=True):
        if not counted or at > counted[-1][0]:
            counted.append((at, seconds))
    return counted


async def find_prefixes(
    body: CountRequest, chat: ChatRequest, generation: Generation, request: Request, thinking: Fields
) -> list[tuple[int | None, float]]:
    """The tokens of the prompt up to each `cache_control`, None for all, and the seconds that they stay."""
    found: list[tuple[int | None, float]] = []
    ids: list[int] | None = None
    for at, seconds in find_breakpoints(body):
        if at == len(body.messages):
            found.append((None, seconds))
            continue
        with suppress(ApiError, StrettoError):  # a template that cannot write so little
            ids = await encode_chat(chat, generation, request, thinking) if ids is None else ids
            other = AnthropicMessage(role=body.messages[at].role, content="\N{MIDDLE DOT}")
            cut = body.model_copy(
                update={"messages": [*body.messages[:at], other], "context_management": None}
            )
            shorter = as_chat(cut, get_state(request).settings.billing_line)
            of_cut = await encode_chat(shorter, generation, request, thinking)
            same = takewhile(lambda pair: pair[0] == pair[1], zip(ids, of_cut, strict=False))
            found.append((sum(1 for _ in same), seconds))
    return found


def _blocks(content: str | list[Any] | None) -> list[Any]:
    return content if isinstance(content, list) else []


@router.post("/v1/messages")
async def messages(body: MessagesRequest, request: Request) -> Response:
    """Answer a conversation."""
    if body.thread:
        reason = "thread: no conversation is kept here; leave it out, and send all messages"
        raise ApiError(400, reason, param="thread", code=NO_THREADS)
    settings = get_state(request).settings
    chat = as_chat(body, settings.billing_line)
    with rename_fields(NAMES, *FIELDS):
        options = read_chat_options(chat, settings.limits)

    async def start(generation: Generation) -> MessageAnswer:
        with rename_fields(NAMES, *FIELDS):
            thinking = thinking_arguments(body, generation.lease.llm, generation.warn)
            if has_billing(body) and not settings.billing_line:
                generation.leave_out(BILLING)
            shorter, edited = await edited_chat(body, chat, generation, request, thinking)
            plan = await converse(shorter, generation, settings, options, thinking)
            keep_prefixes(generation, await find_prefixes(body, shorter, generation, request, thinking))
        return MessageAnswer(generation, body, plan, edited)

    return await respond(request, await start_answer(request, body.model, start, *FIELDS), body.stream)


@router.post("/v1/messages/count_tokens")
async def count_tokens(body: CountRequest, request: Request) -> Response:
    """The number of tokens of a conversation with its tools; nothing is generated."""
    chat = as_chat(body, get_state(request).settings.billing_line)
    async with lease_model(request, body.model) as generation:
        with rename_fields(NAMES, *FIELDS):
            thinking = thinking_arguments(body, generation.lease.llm, generation.warn)
            ids = await encode_chat(chat, generation, request, thinking)
            if not (body.context_management and body.context_management.edits):
                return Json({"input_tokens": len(ids)})
            shorter, _ = await edited_chat(body, chat, generation, request, thinking)
            n_tokens = len(await encode_chat(shorter, generation, request, thinking))
    told = {"original_input_tokens": len(ids)}
    return Json({"input_tokens": n_tokens, "context_management": told})
