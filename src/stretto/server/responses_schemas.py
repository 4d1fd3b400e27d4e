"""Schemas of the bodies of `/v1/responses`, OpenAI's endpoint for answers that may be kept."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from stretto.server.schema_base import LABEL, NEUTRAL, Body, ForModel, Name, Number, Text, within
from stretto.server.schemas import Function, JsonFormat, JsonSchema, NamedFunction, PlainFormat

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
    generate_summary: Annotated[Literal["auto", "concise", "detailed"], Field(description=NEUTRAL)] | None = (
        None
    )
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
    tools: Annotated[list[FunctionTool], Field(max_length=1024)] | None = None
    tool_choice: Literal["none", "auto", "required"] | FunctionChoice | AllowedTools | None = None
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningConfig | None = None
    text: TextConfig | None = None
    truncation: Literal["disabled"] | None = None
    chat_template_kwargs: (
        Annotated[dict[str, Any], Field(max_length=64, description="Arguments of the model's chat template.")]
        | None
    ) = None


class ResponseRequest(InputTokensRequest):
    """`POST /v1/responses`."""

    stream: bool | None = False
    stream_options: Annotated[StreamHints, Field(description=NEUTRAL)] | None = None
    store: bool | None = Field(None, description="Keep the response (the default): others may go on with it.")
    max_output_tokens: Annotated[int, within("max_tokens")] | None = None
    temperature: Annotated[Number, within("temperature")] | None = None
    top_p: Annotated[Number, within("top_p", ge=0)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    include: Annotated[list[Include], Field(max_length=16)] | None = None
    metadata: Annotated[dict[str, str], Field(max_length=64, description=LABEL)] | None = None
    user: Annotated[Text, Field(description=LABEL)] | None = None
    safety_identifier: Annotated[Text, Field(description=LABEL)] | None = None
    prompt_cache_key: Annotated[Text, Field(description=LABEL)] | None = None
    prompt_cache_retention: (
        Annotated[Literal["in_memory", "in-memory", "24h"], Field(description=NEUTRAL)] | None
    ) = None
    service_tier: Annotated[Literal["auto", "default"], Field(description=NEUTRAL)] | None = None
    max_tool_calls: Annotated[int, Field(ge=1, description=f"{NEUTRAL} It is for built-in tools.")] | None = (
        None
    )
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
