"""Schemas of the bodies of `/api/…`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from stretto.server.schemas import Body, Name, Number, Stop, Text

Format = Literal["", "json"] | dict[str, Any]
KeepAlive = str | int | float
Base64Image = Annotated[str, Field(min_length=1, max_length=1 << 26)]


class Options(Body):
    """Sampling options by Ollama's names. Ollama's other options are refused."""

    num_predict: (
        Annotated[int, Field(ge=-2, lt=1 << 31, description="-1: to the end of the context.")] | None
    ) = None
    num_ctx: Annotated[int, Field(ge=1, description="Refused if the context is smaller.")] | None = None
    temperature: Annotated[Number, Field(ge=0, le=100)] | None = None
    top_k: Annotated[int, Field(ge=0, lt=1 << 31)] | None = None
    top_p: Annotated[Number, Field(gt=0, le=1)] | None = None
    min_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    repeat_penalty: Annotated[Number, Field(gt=0, le=100)] | None = None
    presence_penalty: Annotated[Number, Field(ge=-100, le=100)] | None = None
    frequency_penalty: Annotated[Number, Field(ge=-100, le=100)] | None = None
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 64)] | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=64)] | None = None


class Common(Body):
    """The fields that generating and chatting share."""

    model: Name
    stream: bool | None = True
    format: Format | None = None
    options: Options | None = None
    keep_alive: (
        Annotated[KeepAlive, Field(description="Models stay until memory is needed; 0 unloads.")] | None
    ) = None
    think: (
        Annotated[bool | Literal["low", "medium", "high"], Field(description="By the model's own switch.")]
        | None
    ) = None


class GenerateRequest(Common):
    """`POST /api/generate`."""

    prompt: Text | None = ""
    system: Text | None = ""
    raw: bool | None = False
    images: Annotated[list[Base64Image], Field(max_length=64)] | None = None
    suffix: Literal[""] | None = None
    template: Literal[""] | None = None
    context: Annotated[list[int], Field(max_length=0)] | None = None
    logprobs: Literal[False] | None = None
    top_logprobs: Literal[0] | None = None


class OllamaFunctionCall(Body):
    """A function's name and arguments."""

    name: Name
    arguments: dict[str, Any]
    index: int | None = None


class OllamaToolCall(Body):
    """A call that the model made."""

    function: OllamaFunctionCall
    id: Name | None = None


class OllamaMessage(Body):
    """One message of a conversation."""

    role: Literal["system", "user", "assistant", "tool"]
    content: Text | None = ""
    images: Annotated[list[Base64Image], Field(max_length=64)] | None = None
    tool_calls: Annotated[list[OllamaToolCall], Field(max_length=128)] | None = None
    tool_name: Name | None = None
    tool_call_id: Name | None = None
    thinking: Text | None = None


class OllamaChatRequest(Common):
    """`POST /api/chat`."""

    messages: Annotated[list[OllamaMessage], Field(max_length=2048)] | None = None
    tools: Annotated[list[dict[str, Any]], Field(max_length=1024)] | None = None
    logprobs: Literal[False] | None = None
    top_logprobs: Literal[0] | None = None


class ShowRequest(Body):
    """`POST /api/show`."""

    model: Name
    verbose: bool | None = False


class EmbedRequest(Body):
    """`POST /api/embed`."""

    model: Name
    input: Text | Annotated[list[Text], Field(min_length=1, max_length=2048)]
    truncate: (
        Annotated[bool, Field(description="Nothing is cut in any case: a text that is too long is refused.")]
        | None
    ) = None
    dimensions: Annotated[int, Field(ge=1)] | None = None
    options: Options | None = None
    keep_alive: KeepAlive | None = None
