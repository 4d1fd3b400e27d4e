"""Schemas of the bodies of `/api/…`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from stretto.server.generation.fields import Body, Name, Number, Samplers, Text, within
from stretto.server.http.errors import field_error

Format = Literal["", "json"] | dict[str, Any]
KeepAlive = str | int | float
Base64Image = Annotated[str, Field(min_length=1, max_length=1 << 26)]


NO_EFFECT = "Accepted; without effect here."


class Options(Samplers):
    """Sampling options by Ollama's names, and options of its runtime that have no effect here."""

    num_predict: (
        Annotated[int, within("max_tokens", ge=-2, description="-1: to the end of the context.")] | None
    ) = None
    num_ctx: Annotated[int, Field(ge=1, description="Refused if the context is smaller.")] | None = None
    repeat_penalty: Annotated[Number, within("repetition_penalty")] | None = None
    seed: Annotated[int, within("seed", ge=-(1 << 63))] | None = None
    repeat_last_n: Annotated[int, Field(ge=-1, lt=1 << 31)] | None = Field(
        None, description="-1, 0, or without a penalty."
    )
    mirostat: Annotated[int, Field(description="0 only.")] | None = None
    typical_p: Annotated[Number, Field(description="1 only.")] | None = None
    tfs_z: Annotated[Number, Field(description="1 only.")] | None = None
    rope_frequency_base: Annotated[Number, Field(description="0 only.")] | None = None
    rope_frequency_scale: Annotated[Number, Field(description="0 only.")] | None = None
    mirostat_eta: Annotated[Number, Field(description=NO_EFFECT)] | None = None
    mirostat_tau: Annotated[Number, Field(description=NO_EFFECT)] | None = None
    penalize_newline: Annotated[bool, Field(description=NO_EFFECT)] | None = None
    draft_num_predict: Annotated[int, Field(description=NO_EFFECT)] | None = None
    num_keep: Annotated[int, Field(description=NO_EFFECT)] | None = None
    num_batch: Annotated[int, Field(description=NO_EFFECT)] | None = None
    num_gpu: Annotated[int, Field(description=NO_EFFECT)] | None = None
    main_gpu: Annotated[int, Field(description=NO_EFFECT)] | None = None
    num_thread: Annotated[int, Field(description=NO_EFFECT)] | None = None
    num_gqa: Annotated[int, Field(description=NO_EFFECT)] | None = None
    numa: Annotated[bool, Field(description=NO_EFFECT)] | None = None
    low_vram: Annotated[bool, Field(description=NO_EFFECT)] | None = None
    f16_kv: Annotated[bool, Field(description=NO_EFFECT)] | None = None
    logits_all: Annotated[bool, Field(description=NO_EFFECT)] | None = None
    vocab_only: Annotated[Literal[False], Field(description=NO_EFFECT)] | None = None
    embedding_only: Annotated[Literal[False], Field(description=NO_EFFECT)] | None = None
    use_mmap: Annotated[bool, Field(description=NO_EFFECT)] | None = None
    use_mlock: Annotated[bool, Field(description=NO_EFFECT)] | None = None


class RequestOptions(Options):
    """The options of a request: those that are not known are left out with a warning, as Ollama does."""

    model_config = ConfigDict(extra="allow", strict=True, protected_namespaces=())


class Common(Body):
    """The fields that generating and chatting share."""

    model: Name
    stream: bool | None = True
    format: Format | None = None
    options: RequestOptions | None = None
    keep_alive: KeepAlive | None = Field(None, description="Models stay until memory is needed; 0 unloads.")
    think: bool | Literal["low", "medium", "high"] | None = Field(
        None, description="By the model's own switch."
    )
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    truncate: bool | None = Field(None, description="Nothing is cut: a prompt that is too long is refused.")
    shift: bool | None = Field(None, description="Nothing is shifted: the answer ends with the context.")


class GenerateRequest(Common):
    """`POST /api/generate`."""

    prompt: Text | None = ""
    system: Text | None = ""
    raw: bool | None = False
    images: Annotated[list[Base64Image], Field(max_length=64)] | None = None
    suffix: Annotated[Text, Field(description="Text after the answer, which fills the gap.")] | None = None
    template: Annotated[Text, Field(description="A template of Go's, in place of the model's.")] | None = None
    context: Annotated[list[Annotated[int, Field(ge=0, lt=1 << 31)]], Field(max_length=1 << 20)] | None = (
        Field(None, description="As the answer before gave it.")
    )


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


class Named(Body):
    """A body that names a model, by `model` or as older clients do."""

    model: Name | None = None
    name: Annotated[Name, Field(description="The older name of `model`.")] | None = None

    @property
    def wanted(self) -> str:
        """The model's name."""
        if self.model is None and self.name is None:
            raise field_error("model", "model is missing", "missing_field")
        return self.model or self.name or ""


class ShowRequest(Named):
    """`POST /api/show`."""

    verbose: bool | None = False


class DeleteRequest(Named):
    """`DELETE /api/delete`."""


class OllamaPullRequest(Named):
    """`POST /api/pull`."""

    insecure: Literal[False] | None = None
    stream: bool | None = True


class OllamaCopyRequest(Body):
    """`POST /api/copy`."""

    source: Name
    destination: Name


class CreateRequest(Named):
    """`POST /api/create`: a model from one that is here, or from a file."""

    from_: Name | None = Field(None, alias="from", description="A model that is here.")
    files: Annotated[dict[Name, Name], Field(min_length=1, max_length=64)] | None = Field(
        None, description="The name of a GGUF file and its digest, once /api/blobs has it."
    )
    quantize: Annotated[str, Field(min_length=1, max_length=32)] | None = Field(
        None, description="Formats for the weights: q4_K_M, q8_0, …"
    )
    modelfile: Text | None = Field(None, description="The same in Ollama's older form, in place of the rest.")
    system: Text | None = None
    template: Text | None = None
    license: Text | Annotated[list[Text], Field(max_length=16)] | None = None
    parameters: Options | None = None
    messages: Annotated[list[OllamaMessage], Field(max_length=256)] | None = None
    stream: bool | None = True


class EmbeddingsRequest(Body):
    """`POST /api/embeddings`, the older form of `/api/embed`."""

    model: Name
    prompt: Text
    options: RequestOptions | None = None
    keep_alive: KeepAlive | None = None


class EmbedRequest(Body):
    """`POST /api/embed`."""

    model: Name
    input: Text | Annotated[list[Text], Field(max_length=2048)]
    truncate: bool | None = Field(
        None, description="Nothing is cut in any case: a text that is too long is refused."
    )
    dimensions: Annotated[int, Field(ge=1)] | None = None
    options: RequestOptions | None = None
    keep_alive: KeepAlive | None = None
