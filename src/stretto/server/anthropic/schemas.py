"""Schemas of the bodies of `/v1/messages`, Anthropic's endpoints."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from stretto.server.generation.fields import (
    LABEL,
    NEUTRAL,
    Body,
    ForModel,
    Name,
    Number,
    Stop,
    Text,
    ThinkingSwitch,
    within,
)

Data = Annotated[str, Field(min_length=1, max_length=1 << 26)]


PREFIX = "A prefix ends here that stays in the cache for a while."


class CacheControl(Body):
    """The end of a prefix that stays in the cache for a while, whatever else comes."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = Field(None, description="For how long: five minutes, or an hour.")


class Block(Body):
    """A block of content."""

    cache_control: Annotated[CacheControl, Field(description=PREFIX)] | None = None


class TextBlock(Block):
    """Text."""

    type: Literal["text"]
    text: Text
    citations: Annotated[list[Any], Field(max_length=0)] | None = None


class Base64Source(Body):
    """An image in base64."""

    type: Literal["base64"]
    media_type: Literal["image/jpeg", "image/png", "image/gif", "image/webp"]
    data: Data


class UrlSource(Body):
    """The URL of an image: http(s), if the operator allows that."""

    type: Literal["url"]
    url: Data


class ImageBlock(Block):
    """An image."""

    type: Literal["image"]
    source: Annotated[Base64Source | UrlSource, Field(discriminator="type")]


class PlainSource(Body):
    """The text of a document."""

    type: Literal["text"]
    media_type: Literal["text/plain"]
    data: Text


class DocumentBlock(Block):
    """A document of plain text; its title and context stand before it."""

    type: Literal["document"]
    source: PlainSource
    title: Text | None = None
    context: Text | None = None


class ThinkingBlock(Body):
    """Reasoning of an earlier answer."""

    type: Literal["thinking"]
    thinking: Text
    signature: Annotated[Text, Field(description=NEUTRAL)] = ""


class RedactedBlock(Body):
    """Reasoning that nobody here can read; it is left out."""

    type: Literal["redacted_thinking"]
    data: Text


class DirectCaller(Body):
    """The model itself has made the call."""

    type: Literal["direct"]


class ToolUseBlock(Block):
    """A call that the model made."""

    type: Literal["tool_use"]
    id: Name
    name: Name
    input: dict[str, Any]
    caller: DirectCaller | None = None


ResultPart = Annotated[TextBlock | ImageBlock | DocumentBlock, Field(discriminator="type")]


class ToolResultBlock(Block):
    """The answer to a call."""

    type: Literal["tool_result"]
    tool_use_id: Name
    content: Text | Annotated[list[ResultPart], Field(max_length=1024)] | None = None
    is_error: bool | None = Field(None, description="The answer is told as an error.")


AnyBlock = Annotated[
    TextBlock | ImageBlock | DocumentBlock | ThinkingBlock | RedactedBlock | ToolUseBlock | ToolResultBlock,
    Field(discriminator="type"),
]


class AnthropicMessage(Body):
    """One message of a conversation. If the last one is the assistant's, the answer continues it."""

    role: Literal["user", "assistant", "system"]
    content: Text | Annotated[list[AnyBlock], Field(max_length=1024)]


class AnthropicTool(Body):
    """A function that the model may call."""

    type: Literal["custom"] | None = None
    name: Annotated[str, Field(pattern="^[A-Za-z0-9_.-]{1,64}$")]
    input_schema: dict[str, Any]
    description: Text | None = None
    strict: bool | None = None
    cache_control: Annotated[CacheControl, Field(description=PREFIX)] | None = None
    eager_input_streaming: bool | None = Field(
        None, description="Its arguments are streamed as they come; else when all are there."
    )
    allowed_callers: list[Literal["direct"]] | None = None
    defer_loading: Literal[False] | None = None


class FreeChoice(Body):
    """ "auto": the model may call a tool; "any": it has to."""

    type: Literal["auto", "any"]
    disable_parallel_tool_use: bool | None = None


class NoChoice(Body):
    """No tool is called."""

    type: Literal["none"]


class ToolChoice(Body):
    """The tool that has to be called."""

    type: Literal["tool"]
    name: Name
    disable_parallel_tool_use: bool | None = None


class Thinking(ThinkingSwitch):
    """Whether the model thinks, and whether its thoughts are sent."""

    display: Literal["summarized", "omitted"] | None = None


class OutputFormat(Body):
    """JSON that fits a schema."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(Body):
    """The effort of thinking, and the shape of the answer."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


Amount = Annotated[int, Field(ge=0, lt=1 << 31)]


class InputTokens(Body):
    """Tokens of the prompt."""

    type: Literal["input_tokens"]
    value: Amount = Field(description="How many.")


class ToolUses(Body):
    """Calls of tools."""

    type: Literal["tool_uses"]
    value: Amount = Field(description="How many.")


class ThinkingTurns(Body):
    """Messages of the assistant with reasoning, the last ones."""

    type: Literal["thinking_turns"]
    value: Annotated[int, Field(ge=1, lt=1 << 31)] = Field(description="How many.")


class AllThinking(Body):
    """All of them."""

    type: Literal["all"]


class ClearThinking(Body):
    """Old reasoning is left out; of what stays the template decides what it shows."""

    type: Literal["clear_thinking_20251015"]
    keep: Literal["all"] | ThinkingTurns | AllThinking = Field(
        ThinkingTurns(type="thinking_turns", value=1), description="The last turns keep theirs."
    )


class ClearToolUses(Body):
    """Results of old calls become a short text, once the conversation is long enough."""

    type: Literal["clear_tool_uses_20250919"]
    trigger: Annotated[InputTokens | ToolUses, Field(discriminator="type")] = Field(
        InputTokens(type="input_tokens", value=100_000), description="Clear when there are more than that."
    )
    keep: ToolUses = Field(
        ToolUses(type="tool_uses", value=3), description="The last calls keep their results."
    )
    clear_at_least: InputTokens | None = Field(
        None, description="Nothing is cleared if it were fewer tokens, as all behind it is computed again."
    )
    exclude_tools: Annotated[list[Name], Field(max_length=1024)] | None = Field(
        None, description="Tools of which nothing is cleared."
    )
    clear_tool_inputs: bool | Annotated[list[Name], Field(max_length=1024)] | None = Field(
        None, description="Clear the arguments of these calls too; a list names the tools of which."
    )


ContextEdit = Annotated[ClearThinking | ClearToolUses, Field(discriminator="type")]


class ContextManagement(Body):
    """What is cleared from the conversation before it becomes the prompt."""

    edits: Annotated[list[ContextEdit], Field(max_length=16)] = Field([])


class Metadata(Body):
    """Labels."""

    user_id: Annotated[Text, Field(description=LABEL)] | None = None


class CountRequest(ForModel):
    """`POST /v1/messages/count_tokens`."""

    messages: Annotated[list[AnthropicMessage], Field(min_length=1, max_length=2048)]
    system: Text | Annotated[list[TextBlock], Field(max_length=1024)] | None = None
    tools: Annotated[list[AnthropicTool], Field(max_length=1024)] | None = None
    tool_choice: Annotated[FreeChoice | NoChoice | ToolChoice, Field(discriminator="type")] | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    cache_control: Annotated[CacheControl, Field(description=PREFIX)] | None = None
    context_management: ContextManagement | None = Field(
        None, description="What is cleared from the conversation first."
    )
    speed: Literal["standard"] | None = None


class MessagesRequest(CountRequest):
    """`POST /v1/messages`."""

    max_tokens: Annotated[int, within("max_tokens", ge=0)]
    stream: bool | None = False
    stop_sequences: Annotated[list[Stop], Field(max_length=64)] | None = None
    temperature: Annotated[Number, within("temperature")] | None = None
    top_p: Annotated[Number, within("top_p", ge=0)] | None = None
    top_k: Annotated[int, within("top_k")] | None = None
    repeat_guard: bool | None = None
    metadata: Annotated[Metadata, Field(description=LABEL)] | None = None
    service_tier: Annotated[Literal["auto", "standard_only"], Field(description=NEUTRAL)] | None = None
    inference_geo: Annotated[Text, Field(description=NEUTRAL)] | None = None
    user_profile_id: Annotated[Text, Field(description=LABEL)] | None = None
    workspace_id: Annotated[Text, Field(description=LABEL)] | None = None
    thread: Any = Field(
        None, description="Refused, in the way on which clients send the whole conversation instead."
    )
