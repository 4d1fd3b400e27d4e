"""Schemas of the bodies of `/v1/…`. Types are not converted, and unknown fields are refused."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from stretto.server.generation.fields import (
    LABEL,
    NEUTRAL,
    AdapterName,
    AdapterScale,
    Body,
    ForModel,
    Labels,
    Mixed,
    Name,
    Number,
    NumberedAdapters,
    TemplateArguments,
    Text,
    ThinkingSwitch,
    TokenId,
    Tokens,
    VllmSampling,
    within,
)


class RegexGrammar(Body):
    """A regular expression that the text fits."""

    type: Literal["regex"]
    pattern: Text


class LarkGrammar(Body):
    """A grammar in Lark's notation that the text fits."""

    type: Literal["lark"]
    grammar: Text


class ChoiceGrammar(Body):
    """One of these texts."""

    type: Literal["choices"]
    choices: Annotated[list[Text], Field(min_length=1, max_length=10_000)]


class SchemaGrammar(Body):
    """JSON that fits a schema."""

    type: Literal["json"]
    schema_: dict[str, Any] = Field(alias="schema")


GrammarField = Annotated[
    RegexGrammar | LarkGrammar | ChoiceGrammar | SchemaGrammar, Field(discriminator="type")
]


PROMPT_ONLY = "0: the prompt is computed, and nothing else."


class StreamOptions(Body):
    """Options of a stream."""

    include_usage: bool = False
    continuous_usage_stats: bool | None = Field(
        None, description="The numbers of tokens so far in every event, as vLLM has it."
    )
    include_obfuscation: Annotated[bool, Field(description=NEUTRAL)] | None = None


class Sampling(VllmSampling):
    """The fields that both kinds of completion have. Those that are left out take Stretto's defaults."""

    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, within("max_tokens", ge=0)] | None = None
    n_predict: Annotated[int, within("max_tokens", ge=-2)] | None = Field(
        None, description="llama-server's name of max_tokens; below 0: to the end of the context."
    )
    logit_bias: (
        Annotated[
            dict[Annotated[str, Field(pattern="^[0-9]{1,9}$")], Annotated[Number, Field(ge=-100, le=100)]],
            Field(max_length=1024),
        ]
        | None
    ) = None
    n: Annotated[int, within("n")] | None = 1
    seed: Annotated[int, within("seed", ge=-(1 << 63))] | None = None
    user: Annotated[Text, Field(description=LABEL)] | None = None
    # Not among OpenAI's fields. Descriptions that are not here are in descriptions.py.
    repetition_penalty: Annotated[Number, within("repetition_penalty")] | None = None
    return_token_ids: bool | None = Field(
        None, description="Ids of tokens too: of prompt, text and alternatives."
    )
    stop_tokens: Annotated[list[TokenId], Field(max_length=64)] | None = None
    timeout: Annotated[Number, within("timeout")] | None = None
    continue_token_ids: Tokens | None = Field(
        None, description="Ids that the text begins with already; it goes on behind them."
    )
    resumable: bool | None = Field(
        None,
        description="With stream: it outlives its connection, and can be read on at /stretto/streams/ID.",
    )
    grammar: GrammarField | Text | None = Field(
        None, description="What the text has to look like; a text is a grammar in GBNF."
    )
    verbose: bool | None = Field(None, description="The prompt as text, in `__verbose`.")
    lora: (
        AdapterName
        | Annotated[dict[AdapterName, AdapterScale], Field(min_length=1, max_length=16)]
        | NumberedAdapters
        | None
    ) = Field(None, description="An adapter of the model by name, or names or numbers with a scale for each.")
    cache_pin: Annotated[str, Field(pattern="^[A-Za-z0-9._-]{1,64}$")] | None = Field(
        None, description="Keep the prompt in the cache, by name."
    )


class CompletionRequest(Sampling):
    """`POST /v1/completions`."""

    prompt: (
        Text
        | Annotated[list[Text], Field(min_length=1, max_length=2048)]
        | Tokens
        | Annotated[list[Tokens], Field(min_length=1, max_length=2048)]
        | Annotated[Mixed, Field(description="One prompt of texts and ids.")]
        | Annotated[list[Text | Mixed], Field(min_length=1, max_length=2048)]
    )
    max_tokens: Annotated[int, within("max_tokens", ge=0, description=PROMPT_ONLY)] | None = 16
    best_of: Annotated[int, within("best_of")] | None = None
    echo: bool | None = False
    add_special_tokens: bool | None = Field(
        None,
        description="Whether special tokens stand before a text, as the model's file says; true by default.",
    )
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    suffix: Text | None = Field(None, description="The text behind the gap, for models that fill one.")


class TextPart(Body):
    """Text of a message."""

    type: Literal["text"]
    text: Text


class ImageUrl(Body):
    """The URL of an image: `data:`, or http(s) if the operator allows that."""

    url: Annotated[str, Field(min_length=1, max_length=1 << 26)]
    detail: Literal["auto", "low", "high"] | None = None


class ImagePart(Body):
    """An image of a message."""

    type: Literal["image_url"]
    image_url: Annotated[
        ImageUrl, BeforeValidator(lambda given: {"url": given} if isinstance(given, str) else given)
    ]


class InputAudio(Body):
    """A sound: a file in base64. Its kind is seen from its bytes."""

    data: Annotated[str, Field(min_length=1, max_length=1 << 26)]
    format: Literal["wav", "mp3", "flac", "ogg", "opus", "aiff"] | None = None


class AudioPart(Body):
    """A sound of a message."""

    type: Literal["input_audio"]
    input_audio: InputAudio


Part = Annotated[TextPart | ImagePart | AudioPart, Field(discriminator="type")]


class FunctionCall(Body):
    """A function's name and arguments."""

    name: Name
    arguments: Text


class ToolCall(Body):
    """A call that the model made."""

    id: Name
    type: Literal["function"] = "function"
    function: FunctionCall


class Message(Body):
    """One message of a conversation. "developer" is understood as "system"."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Text | Annotated[list[Part], Field(max_length=1024)] | None = None
    name: Name | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=128)] | None = None
    tool_call_id: Name | None = None
    refusal: Text | None = None
    reasoning_content: Text | None = None
    reasoning: Annotated[Text, Field(description="The same as reasoning_content.")] | None = None
    provider_specific_fields: Annotated[dict[str, Any], Field(max_length=64)] | None = Field(
        None, description=f"Of LiteLLM. {NEUTRAL}"
    )
    audio: None = None
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None
    function_call: Annotated[FunctionCall, Field(description="Of old clients; see functions.")] | None = None


class Function(Body):
    """A function that the model may call."""

    name: Annotated[str, Field(pattern="^[A-Za-z0-9_.-]{1,64}$")]
    description: Text | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Body):
    """A tool: only functions are supported."""

    type: Literal["function"]
    function: Function


class NamedFunction(Body):
    """The name of a function."""

    name: Name


class NamedTool(Body):
    """The tool that has to be called."""

    type: Literal["function"]
    function: NamedFunction


class JsonSchema(Body):
    """A schema with a name."""

    name: Annotated[Name, Field(description=NEUTRAL)] = "answer"
    description: Text | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class PlainFormat(Body):
    """Any text."""

    type: Literal["text"]


class JsonFormat(Body):
    """A JSON object; one that fits a schema, if that is given."""

    type: Literal["json_object"]
    schema_: dict[str, Any] | None = Field(None, alias="schema")


class SchemaFormat(Body):
    """JSON that fits a schema."""

    type: Literal["json_schema"]
    json_schema: JsonSchema


class Prediction(Body):
    """The text that is likely to come, which other servers use to be faster."""

    type: Literal["content"]
    content: Text | Annotated[list[TextPart], Field(max_length=1024)]


ResponseFormat = Annotated[PlainFormat | JsonFormat | SchemaFormat, Field(discriminator="type")]


class ChatRequest(Sampling, Labels):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=2048)]
    max_completion_tokens: Annotated[int, within("max_tokens", ge=0, description=PROMPT_ONLY)] | None = None
    logprobs: bool | None = False
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    response_format: ResponseFormat | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    functions: Annotated[list[Function], Field(max_length=1024)] | None = Field(
        None, description="As tools, for old clients."
    )
    function_call: Literal["none", "auto"] | NamedFunction | None = Field(
        None, description="As tool_choice, for old clients."
    )
    include_reasoning: bool | None = Field(
        None, description="False: reasoning is left out of the answer; it counts all the same."
    )
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = Field(
        None, description="By the model's own switch: where that is on or off, only none turns it off."
    )
    thinking: Annotated[ThinkingSwitch, Field(description="As in Anthropic's messages.")] | None = None
    thinking_budget_tokens: Annotated[int, Field(ge=-1, lt=1 << 31)] | None = Field(
        None, description="Tokens of reasoning at most; -1: any number."
    )
    thinking_token_budget: Annotated[int, Field(ge=0, lt=1 << 31)] | None = Field(
        None, description="The same, by vLLM's name."
    )
    chat_template_kwargs: TemplateArguments | None = None
    continue_final_message: bool | None = Field(
        None, description="The answer continues the last message, one of the assistant."
    )
    echo: bool | None = Field(
        None, description="The answer begins with the last message, if that is the assistant's."
    )
    add_special_tokens: Literal[False] | None = Field(
        None, description="Only false: the chat template writes special tokens."
    )
    add_generation_prompt: bool | None = Field(
        None, description="Whether the template begins an answer; true by default."
    )
    store: Annotated[bool, Field(description=NEUTRAL)] | None = None
    service_tier: Literal["auto", "default", "flex", "scale", "priority"] | None = Field(
        None, description=NEUTRAL
    )
    verbosity: Annotated[Literal["low", "medium", "high"], Field(description=NEUTRAL)] | None = None
    prediction: Annotated[Prediction, Field(description=NEUTRAL)] | None = None
    modalities: list[Literal["text"]] | None = None


class PromptString(Body):
    """A text as an object, as llama-server takes it."""

    prompt_string: Text = Field(description="The text.")


class PromptParts(Body):
    """A text in parts, which are joined."""

    content: Annotated[list[TextPart], Field(min_length=1, max_length=1024)] = Field(
        description="Parts of the text; images have no vectors here."
    )


PromptObject = PromptString | PromptParts


EmbeddingInput = (
    Text
    | Annotated[list[Text], Field(min_length=1, max_length=2048)]
    | Tokens
    | Annotated[list[list[TokenId]], Field(min_length=1, max_length=2048)]
    | Annotated[Mixed, Field(description="One text of texts and ids.")]
    | PromptObject
    | Annotated[list[Text | Mixed | PromptObject], Field(min_length=1, max_length=2048)]
)


class EmbeddingRequest(ForModel):
    """`POST /v1/embeddings`."""

    verb: ClassVar[str] = "embed"

    input: EmbeddingInput
    encoding_format: Literal["float", "base64"] | None = "float"
    dimensions: Annotated[int, Field(ge=1)] | None = None
    user: Annotated[Text, Field(description=LABEL)] | None = None
    pooling: Literal["mean", "cls", "last"] | None = Field(
        None, description="How a text's states become one vector; by default as the model's file says."
    )
    normalize: Annotated[bool, Field(description="L2-normalise the vectors.")] = True
