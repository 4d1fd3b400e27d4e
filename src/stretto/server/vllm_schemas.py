"""Fields that vLLM adds to OpenAI's bodies."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from stretto.server.sampler_schemas import LlamaSamplers
from stretto.server.schema_base import NEUTRAL, Body, Text, TokenId, within

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
