"""Schemas of the bodies of `/v1/responses`, OpenAI's endpoint for answers that may be kept."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Discriminator, Field, Tag

from stretto.server.generation.fields import (
    LABEL,
    NEUTRAL,
    Body,
    ForModel,
    Labels,
    Name,
    Number,
    TemplateArguments,
    Text,
    within,
)
from stretto.server.generation.options import plain_options
from stretto.server.generation.requests import (
    ChatRequest,
    Function,
    JsonFormat,
    JsonSchema,
    NamedFunction,
    PlainFormat,
)
from stretto.server.http.errors import field_error

Status = Annotated[Literal["in_progress", "completed", "incomplete"], Field(description=NEUTRAL)]


class InputText(Body):
    """Text of a message."""

    type: Literal["input_text"]
    text: Text


class OutputText(Body):
    """Text of an earlier answer."""

    type: Literal["output_text"]
    text: Text
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None
    logprobs: Annotated[list[Any], Field(max_length=1 << 17, description=NEUTRAL)] | None = None


class Refusal(Body):
    """An earlier answer that refuses."""

    type: Literal["refusal"]
    refusal: Text


class InputImage(Body):
    """An image: `data:`, or http(s) if the operator allows that."""

    type: Literal["input_image"]
    image_url: Annotated[str, Field(min_length=1, max_length=1 << 26)]
    detail: Literal["auto", "low", "high", "original"] | None = None
    file_id: None = None


MessagePart = Annotated[InputText | InputImage | OutputText | Refusal, Field(discriminator="type")]
OutputPart = Annotated[InputText | InputImage, Field(discriminator="type")]


class MessageItem(Body):
    """A message."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Text | Annotated[list[MessagePart], Field(max_length=1024)]
    id: Name | None = None
    status: Status | None = None
    phase: Annotated[Literal["commentary", "final_answer"], Field(description=NEUTRAL)] | None = None


class CallItem(Body):
    """A call that the model made."""

    type: Literal["function_call"]
    call_id: Name
    name: Name
    arguments: Text
    id: Name | None = None
    status: Status | None = None


class ResultItem(Body):
    """The answer to a call."""

    type: Literal["function_call_output"]
    call_id: Name
    output: Text | Annotated[list[OutputPart], Field(max_length=1024)]
    id: Name | None = None
    status: Status | None = None


class Thought(Body):
    """Text of reasoning."""

    type: Literal["reasoning_text", "summary_text"]
    text: Text


class ReasoningItem(Body):
    """Reasoning of an earlier answer."""

    type: Literal["reasoning"]
    summary: Annotated[list[Thought], Field(max_length=1024)] = Field([])
    content: Annotated[list[Thought], Field(max_length=1024)] | None = None
    encrypted_content: Annotated[Text, Field(description="Left out: nobody here can read it.")] | None = None
    id: Name | None = None
    status: Status | None = None


def _kind(item: Any) -> str:
    """The type of an item; a message may leave it out."""
    kind = item.get("type", "message") if isinstance(item, dict) else getattr(item, "type", "message")
    return kind if isinstance(kind, str) else "message"


Item = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[CallItem, Tag("function_call")]
    | Annotated[ResultItem, Tag("function_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")],
    Discriminator(_kind),
]


class FunctionTool(Function):
    """A function that the model may call."""

    type: Literal["function"]
    allowed_callers: list[Literal["direct"]] | None = None
    defer_loading: Literal[False] | None = None


class HostedTool(Body):
    """A tool that is no function, as Codex sends them beside its own: left out with a warning."""

    model_config = ConfigDict(extra="allow", strict=True, protected_namespaces=())

    type: Literal["namespace", "web_search"]
    name: Name | None = None


AnyTool = Annotated[FunctionTool | HostedTool, Field(discriminator="type")]


class FunctionChoice(NamedFunction):
    """The function that has to be called."""

    type: Literal["function"]


class AllowedTools(Body):
    """Some of the tools, from which one may or has to be called."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[FunctionChoice], Field(min_length=1, max_length=1024)]


class SchemaText(JsonSchema):
    """JSON that fits a schema."""

    type: Literal["json_schema"]


class TextConfig(Body):
    """The shape of the answer."""

    format: Annotated[PlainFormat | JsonFormat | SchemaText, Field(discriminator="type")] | None = None
    verbosity: Annotated[Literal["low", "medium", "high"], Field(description=NEUTRAL)] | None = None


class ReasoningConfig(Body):
    """How hard the model thinks."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Annotated[Literal["auto", "concise", "detailed"], Field(description=NEUTRAL)] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = Field(None, description=NEUTRAL)
    context: Literal["auto"] | None = None
    mode: Literal["standard"] | None = None


class StreamHints(Body):
    """Options of a stream."""

    include_obfuscation: Annotated[bool, Field(description=NEUTRAL)] | None = None


Include = Literal[
    "reasoning.encrypted_content", "message.output_text.logprobs", "message.input_image.image_url"
]


class InputTokensRequest(ForModel):
    """`POST /v1/responses/input_tokens`."""

    input: Text | Annotated[list[Item], Field(max_length=4096)]
    instructions: Text | None = None
    previous_response_id: Name | None = None
    tools: Annotated[list[AnyTool], Field(max_length=1024)] | None = None
    tool_choice: Literal["none", "auto", "required"] | FunctionChoice | AllowedTools | None = None
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningConfig | None = None
    text: TextConfig | None = None
    truncation: Literal["disabled"] | None = None
    chat_template_kwargs: TemplateArguments | None = None


class ResponseRequest(InputTokensRequest, Labels):
    """`POST /v1/responses`."""

    stream: bool | None = False
    stream_options: Annotated[StreamHints, Field(description=NEUTRAL)] | None = None
    store: bool | None = Field(None, description="Keep the response (the default): others may go on with it.")
    max_output_tokens: Annotated[int, within("max_tokens")] | None = None
    temperature: Annotated[Number, within("temperature")] | None = None
    top_p: Annotated[Number, within("top_p", ge=0)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    include: Annotated[list[Include], Field(max_length=16)] | None = None
    service_tier: Annotated[Literal["auto", "default"], Field(description=NEUTRAL)] | None = None
    max_tool_calls: Annotated[int, Field(ge=1)] | None = Field(
        None, description=f"{NEUTRAL} It is for built-in tools."
    )
    client_metadata: Annotated[dict[str, Any], Field(max_length=64, description=LABEL)] | None = None
    background: bool | None = Field(
        None, description="Answer at once, and make the response meanwhile; it is stored, and not streamed."
    )
    # Not among OpenAI's fields
    seed: Annotated[int, within("seed", ge=-(1 << 63))] | None = None
    top_k: Annotated[int, within("top_k")] | None = None
    min_p: Annotated[Number, within("min_p")] | None = None
    repeat_guard: bool | None = None
    timings_per_token: bool | None = Field(
        None, description="In streams: timings with every piece of text, and at the end."
    )
    return_progress: bool | None = Field(
        None, description="In streams: events that say how much of the prompt has been computed."
    )


# The items of `/v1/responses` as messages of a chat request, the form that the server works with.

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


def list_items(body: InputTokensRequest) -> list[AnyItem]:
    """The items of the input."""
    if isinstance(body.input, str):
        return [MessageItem(role="user", content=body.input)]
    return list(body.input)


def as_chat(body: InputTokensRequest, items: Sequence[AnyItem]) -> ChatRequest:
    """The chat request that asks for the same; `items` are those of the whole conversation."""
    system = [{"role": "system", "content": body.instructions}] if body.instructions else []
    messages = [*system, *make_messages(items)]
    if not messages:
        raise field_error("input", "input is empty; there is nothing to answer")
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


def make_messages(items: Iterable[AnyItem]) -> list[Fields]:
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
            raise field_error("input", f"input: content[{at}] of an assistant's message is an image")
    return "".join(_said(part) for part in content)


def _said(part: Any) -> str:
    return part.text if isinstance(part, (InputText, OutputText)) else str(part.refusal)


def list_hosted(body: InputTokensRequest) -> list[tuple[str, str]]:
    """The fields of tools that are left out, and what becomes of them."""
    return [
        (f"tools[{at}].type", f"{tool.type} is left out: only functions can be called here")
        for at, tool in enumerate(body.tools or ())
        if isinstance(tool, HostedTool)
    ]


def _tools(body: InputTokensRequest) -> Fields:
    tools, choice = [one for one in body.tools or () if isinstance(one, FunctionTool)], body.tool_choice
    if body.tools and not tools:
        kind = body.tools[0].type
        raise field_error("tools[0].type", f"tools[0].type: only functions can be called here, not {kind!r}")
    wanted: Any = choice
    if isinstance(choice, AllowedTools):
        names = {one.name for one in choice.tools}
        if missing := names - {tool.name for tool in tools}:
            message = f"tool_choice allows {min(missing)!r}, which tools does not have"
            raise field_error("tool_choice", message)
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
