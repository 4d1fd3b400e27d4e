"""Schemas of llama-server's own endpoints."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from stretto.server.generation.fields import (
    NEUTRAL,
    Body,
    ForModel,
    LlamaSamplers,
    Mixed,
    Number,
    NumberedAdapters,
    Text,
    Words,
    within,
)
from stretto.server.generation.requests import Message, Tool

Bias = Annotated[Number, Field(ge=-1e9, le=1e9)] | Literal[False]


class TokenizeText(ForModel):
    """`POST /tokenize`: llama-server's `content`, or vLLM's `prompt` or `messages`."""

    content: Text | None = Field(None, description="A text, for llama-server's clients.")
    prompt: Text | None = Field(None, description="A text, for vLLM's clients.")
    messages: Annotated[list[Message], Field(min_length=1, max_length=2048)] | None = Field(
        None, description="A conversation, for vLLM's clients."
    )
    tools: list[Tool] | None = Field(None, description="With messages: functions that are offered.")
    chat_template_kwargs: Annotated[dict[str, Any], Field(max_length=64)] | None = Field(
        None, description="With messages: arguments of the chat template."
    )
    add_generation_prompt: bool | None = Field(
        None, description="With messages: an answer begins, by default."
    )
    continue_final_message: bool | None = Field(None, description="With messages: the last one goes on.")
    add_special_tokens: bool | None = Field(
        None, description="As add_special, for prompt, where it is true by default; templates have their own."
    )
    return_token_strs: bool | None = Field(None, description="With prompt or messages: the texts of tokens.")
    add_special: bool = Field(False, description="With BOS, as the model asks.")
    parse_special: bool = Field(True, description="Special tokens in the text are tokens.")
    with_pieces: bool = Field(False, description="Each token with its text.")


class DetokenizeTokens(ForModel):
    """`POST /detokenize`."""

    tokens: Annotated[list[Annotated[int, Field(ge=0, lt=1 << 31)]], Field(max_length=1 << 20)]


class NativeSampling(LlamaSamplers):
    """The fields that `/completion` and `/infill` share."""

    n_predict: Annotated[int, within("max_tokens", ge=-2)] | None = Field(
        None,
        description="Generate at most so many tokens; below 0: to the context's end; 0: compute the prompt.",
    )
    logit_bias: (
        Annotated[dict[Annotated[str, Field(max_length=1000)], Bias] | list[Any], Field(max_length=1024)]
        | None
    ) = Field(None, description="Tokens or texts, with what is added; false: never.")
    seed: Annotated[int, within("seed", ge=-1)] | None = None
    n_probs: Annotated[int, Field(ge=0, le=20)] | None = Field(
        None, description="Log-probabilities of each token, and of so many alternatives."
    )
    post_sampling_probs: bool | None = Field(
        None, description="n_probs are probabilities after the samplers, not the model's log-probabilities."
    )
    return_tokens: bool | None = Field(None, description="Ids of the generated tokens; streams have them.")
    response_fields: Words | None = Field(
        None, description="Return only these, as content or generation_settings/n_predict."
    )
    grammar: Text | None = Field(None, description="What the text has to look like, in GBNF.")
    t_max_predict_ms: Annotated[int, Field(ge=-1, lt=1 << 31)] | None = Field(
        None, description="Milliseconds after which the text generated so far is sent."
    )
    t_max_prompt_ms: Annotated[int, Field(ge=-1, description=NEUTRAL)] | None = None
    n_indent: Annotated[int, Field(ge=0, description=NEUTRAL)] | None = None
    n_keep: Annotated[int, Field(ge=-1, description=NEUTRAL)] | None = None
    n_discard: Annotated[int, Field(ge=0, description=NEUTRAL)] | None = None
    lora: NumberedAdapters | None = Field(
        None, description="Adapters of the model by their numbers, with a scale for each."
    )


class TextPrompt(Body):
    """A prompt as an object, for models that see."""

    prompt_string: Text = Field(description="The text.")
    multimodal_data: Annotated[list[Any], Field(max_length=0)] | None = Field(
        None, description="Not supported: images go with messages."
    )


OnePrompt = Text | Mixed | TextPrompt


class NativeCompletion(NativeSampling):
    """`POST /completion` and `/completions`."""

    prompt: Text | TextPrompt | Mixed | Annotated[list[OnePrompt], Field(min_length=1, max_length=2048)]


class ExtraFile(Body):
    """Another file, which comes before the gap."""

    filename: Annotated[str, Field(max_length=1024)] | None = None
    text: Text
    time: int | None = None


class InfillRequest(NativeSampling):
    """`POST /infill`: the text for the gap between a prefix and a suffix."""

    input_prefix: Text = ""
    input_suffix: Text = ""
    input_extra: Annotated[list[ExtraFile], Field(max_length=256)] | None = None
    prompt: Annotated[Text, Field(description="The beginning of the text for the gap.")] | None = ""


Prompt = str | TextPrompt | list[Any]


def list_prompts(given: Prompt) -> list[Any]:
    """The prompts of a request as texts and lists of ids and texts; a list with an id in it is one prompt."""
    if isinstance(given, list) and not any(isinstance(part, int) for part in given):
        return [_plain(one) for one in given]
    return [_plain(given)]


def _plain(prompt: Prompt) -> str | list[Any]:
    return prompt.prompt_string if isinstance(prompt, TextPrompt) else prompt
