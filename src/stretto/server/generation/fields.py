"""Types and base classes of schemas of bodies. Types are not converted, and unknown fields are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal

from fastapi import Query
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema

from stretto.options.generating import OPTIONS, PARALLEL_OWN

Text = Annotated[str, Field(max_length=1 << 24)]
Name = Annotated[str, Field(min_length=1, max_length=256)]
ModelName = Annotated[str, Query(min_length=1, max_length=256)]
Number = Annotated[float, Field(allow_inf_nan=False)]
TokenId = Annotated[int, Field(ge=0, lt=1 << 31)]
Tokens = Annotated[list[TokenId], Field(min_length=1, max_length=1 << 20)]
Mixed = Annotated[list[TokenId | Text], Field(min_length=1, max_length=1 << 16)]
AdapterName = Annotated[str, Field(min_length=1, max_length=64)]
AdapterScale = Annotated[float, Field(allow_inf_nan=False, ge=-1000, le=1000)]
Stop = Annotated[str, Field(min_length=1, max_length=1000)]

LABEL = "Accepted and only logged."
NEUTRAL = "Accepted, and changes nothing here."


OPTION = {option.name: option for option in (*PARALLEL_OWN, *OPTIONS)}


def within(name: str, **own: Any) -> Any:
    """The range of a field that sets an option; `own` is what its protocol says otherwise, or besides.

    >>> within("min_p").metadata
    [Ge(ge=0), Le(le=1)]
    """
    option = OPTION[name]
    above = {} if "ge" in own else {"gt" if option.above else "ge": option.low}
    return Field(**{**above, "le": option.high, **own})


def fail_fast(schema: Any) -> None:
    """Make every list of a schema fail at its first wrong value."""
    if isinstance(schema, dict):
        if schema.get("type") == "list":
            schema["fail_fast"] = True
        for inner in schema.values():
            fail_fast(inner)
    elif isinstance(schema, (list, tuple)):
        for inner in schema:
            fail_fast(inner)


class Body(BaseModel):
    """A body, or an object in one. Its lists fail at their first wrong value, so that errors are few."""

    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=())

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """The schema of the fields, with every list made to fail fast."""
        schema = handler(source)
        fail_fast(schema)
        return schema


class ThinkingSwitch(Body):
    """Whether the model thinks, where its template has a switch; "adaptive" leaves it to the model."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, Field(ge=1, lt=1 << 31)] | None = Field(
        None, description="So many tokens of thinking at most; then comes text."
    )


class NumberedAdapter(Body):
    """An adapter by its number, as llama-server's clients name them."""

    id: Annotated[int, Field(ge=0, lt=1024)] = Field(description="Its place among the model's adapters.")
    scale: AdapterScale = Field(description="0 leaves it out.")


NumberedAdapters = Annotated[list[NumberedAdapter], Field(max_length=16)]
ServedName = Annotated[
    str, BeforeValidator(lambda given: "" if given is None else given), Field(max_length=256)
]


class ForModel(Body):
    """A body that names a model, or means the first one that has the verb (its route fills the name in)."""

    verb: ClassVar[str] = "generate"

    model: ServedName = Field("", description="Name of a model; without it, the first that can do this.")


TemplateArguments = Annotated[
    dict[str, Any], Field(max_length=64, description="Arguments of the model's chat template.")
]
Stops = Stop | Annotated[list[Stop], Field(max_length=64)]


class Samplers(Body):
    """The options of samplers that OpenAI's, llama-server's and Ollama's bodies have alike."""

    temperature: Annotated[Number, within("temperature")] | None = None
    top_k: Annotated[int, within("top_k", ge=-1)] | None = Field(
        None, description="Sample among the k most probable tokens only; 0 or -1: among all."
    )
    top_p: Annotated[Number, within("top_p", ge=0)] | None = None
    min_p: Annotated[Number, within("min_p")] | None = None
    presence_penalty: Annotated[Number, within("presence_penalty")] | None = None
    frequency_penalty: Annotated[Number, within("frequency_penalty")] | None = None
    stop: Stops | None = None
    repeat_guard: bool | None = None


class Labels(Body):
    """Fields of OpenAI's chats and responses that change nothing."""

    metadata: Annotated[dict[str, str], Field(max_length=64, description=LABEL)] | None = None
    user: Annotated[Text, Field(description=LABEL)] | None = None
    safety_identifier: Annotated[Text, Field(description=LABEL)] | None = None
    prompt_cache_key: Annotated[Text, Field(description=LABEL)] | None = None
    prompt_cache_retention: Literal["in_memory", "in-memory", "24h"] | None = Field(None, description=NEUTRAL)


# Fields of samplers as llama-server's clients send them, on every endpoint that generates.
#
# They send all that they know: those of samplers that Stretto lacks are accepted while they are off.

OFF = "Accepted while it is off."


def _only(off: float) -> Callable[[float], float]:
    """A check for the value at which a sampler changes nothing."""

    def check(value: float) -> float:
        if value != off:
            raise ValueError(f"this sampler is not supported; leave it out, or give {off:g}")
        return value

    return check


OffAtZero = Annotated[
    Number, AfterValidator(_only(0)), Field(description=OFF, json_schema_extra={"minimum": 0, "maximum": 0})
]
OffAtOne = Annotated[
    Number, AfterValidator(_only(1)), Field(description=OFF, json_schema_extra={"minimum": 1, "maximum": 1})
]
Unused = Annotated[Number, Field(description=f"{NEUTRAL} Its sampler is off.")]
Words = Annotated[list[Annotated[str, Field(max_length=64)]], Field(max_length=64)]


class LlamaSamplers(Samplers, ForModel):
    """The fields that llama-server's clients send to every endpoint that generates."""

    repeat_penalty: Annotated[Number, within("repetition_penalty")] | None = Field(
        None, description="As repetition_penalty."
    )
    repeat_last_n: Annotated[int, Field(ge=-1, lt=1 << 31)] | None = Field(
        None, description="-1 with a repeat_penalty, which looks at the whole text; 0 turns it off."
    )
    samplers: Annotated[Words | Text, Field(description=NEUTRAL)] | None = None
    min_keep: Annotated[int, Field(ge=0, description=NEUTRAL)] | None = None
    backend_sampling: Annotated[bool, Field(description=NEUTRAL)] | None = None
    typical_p: OffAtOne | None = None
    typ_p: OffAtOne | None = None
    mirostat: OffAtZero | None = None
    mirostat_tau: Unused | None = None
    mirostat_eta: Unused | None = None
    dynatemp_range: OffAtZero | None = None
    dynatemp_exponent: Unused | None = None
    xtc_probability: OffAtZero | None = None
    xtc_threshold: Unused | None = None
    dry_multiplier: OffAtZero | None = None
    dry_base: Unused | None = None
    dry_allowed_length: Unused | None = None
    dry_penalty_last_n: Unused | None = None
    dry_sequence_breakers: Annotated[Words, Field(description=NEUTRAL)] | None = None
    adaptive_target: Annotated[Number, Field(lt=0, description=OFF)] | None = None
    adaptive_decay: Unused | None = None
    top_n_sigma: Annotated[Number, Field(le=0, description=OFF)] | None = None
    ignore_eos: bool | None = None
    json_schema: dict[str, Any] | None = Field(None, description="A schema that the text has to fit.")
    stream: bool | None = False
    timings_per_token: bool | None = Field(None, description="Timings in every chunk of a stream.")
    return_progress: bool | None = Field(
        None, description="In streams: events that say how much of the prompt has been computed."
    )
    cache_prompt: Annotated[bool, Field(description=NEUTRAL)] | None = None
    id_slot: Annotated[int, Field(ge=-1)] | None = Field(
        None, description="The text is remembered by this number, for POST /slots/ID."
    )


# Fields that vLLM adds to OpenAI's bodies.

Choices = Annotated[list[Text], Field(min_length=1, max_length=10_000)]
SchemaOrText = dict[str, Any] | Text


class StructuredOutputs(Body):
    """What the text has to look like; exactly one of the first five fields is given."""

    json_: SchemaOrText | None = Field(None, alias="json", description="A JSON schema, or its text.")
    regex: Text | None = Field(None, description="A regular expression that the text fits as a whole.")
    choice: Choices | None = Field(None, description="The texts, one of which is written.")
    grammar: Text | None = Field(None, description="A grammar: GBNF if it has ::=, otherwise Lark.")
    json_object: bool | None = Field(None, description="Any JSON object.")
    disable_any_whitespace: bool | None = Field(None, description="JSON without whitespace.")
    disable_additional_properties: bool | None = Field(
        None, description="Objects of a schema have only properties that are named."
    )
    whitespace_pattern: Text | None = Field(
        None, description="A regular expression for the whitespace of JSON."
    )


class VllmSampling(LlamaSamplers):
    """The fields that both kinds of completion have."""

    min_tokens: Annotated[int, within("min_tokens")] | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=64)] | None = Field(
        None, description="As stop_tokens."
    )
    include_stop_str_in_output: bool | None = Field(
        None, description="The stop string, or the text of the stop token, is part of the text."
    )
    skip_special_tokens: bool | None = Field(
        None, description="False: special tokens are part of the text; not together with tools."
    )
    spaces_between_special_tokens: Annotated[bool, Field(description=NEUTRAL)] | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, lt=1 << 31)] | None = Field(
        None,
        description="Keep so many tokens of a longer prompt; -1: as many as leave room for max_tokens.",
    )
    truncation_side: Literal["left", "right"] | None = Field(
        None, description='Where truncate_prompt_tokens takes tokens away; "left" by default.'
    )
    prompt_logprobs: Annotated[int, Field(ge=0, le=20)] | None = Field(
        None,
        description="Log-probabilities of the prompt's tokens and of so many alternatives; not in streams.",
    )
    logprob_token_ids: Annotated[list[TokenId], Field(min_length=1, max_length=1000)] | None = Field(
        None,
        description="Tokens whose log-probabilities are given in place of the most probable ones'; "
        "with logprobs.",
    )
    allowed_token_ids: Annotated[list[TokenId], Field(min_length=1, max_length=1 << 20)] | None = Field(
        None, description="Tokens that may be sampled; all others are excluded."
    )
    return_tokens_as_token_ids: bool | None = Field(
        None, description='Tokens of logprobs are "token_id:ID" instead of texts.'
    )
    structured_outputs: StructuredOutputs | None = Field(None, description="What the text has to look like.")
    guided_json: SchemaOrText | None = Field(None, description="As structured_outputs.json.")
    guided_regex: Text | None = Field(None, description="As structured_outputs.regex.")
    guided_choice: Choices | None = Field(None, description="As structured_outputs.choice.")
    guided_grammar: Text | None = Field(None, description="As structured_outputs.grammar.")
    guided_whitespace_pattern: Text | None = Field(
        None, description="As structured_outputs.whitespace_pattern."
    )
