"""Models that answer: streams, conversations, images, schemas, tools."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from typing import Any

import llm
from llm.parts import StreamEvent
from pydantic import Field

import stretto
from llm_stretto.messages import conversation, tool_descriptions
from llm_stretto.names import Named
from stretto.options.documenting import MEANINGS

IMAGES = frozenset({"image/png", "image/jpeg", "image/webp", "image/gif", "image/bmp", "image/tiff"})
THINKING = "Whether the model thinks before it answers, or with what effort (low, medium, high)."


def described(name: str) -> Any:
    """An option that is left out by default, with Stretto's description."""
    return Field(None, description=MEANINGS[name])


class Options(llm.Options):
    """The options of a prompt; those that are left out are the model's own."""

    temperature: float | None = described("temperature")
    top_k: int | None = described("top_k")
    top_p: float | None = described("top_p")
    min_p: float | None = described("min_p")
    repetition_penalty: float | None = described("repetition_penalty")
    presence_penalty: float | None = described("presence_penalty")
    frequency_penalty: float | None = described("frequency_penalty")
    max_tokens: int | None = described("max_tokens")
    seed: int | None = described("seed")
    stop: str | None = described("stop")
    ignore_eos: bool | None = described("ignore_eos")
    timeout: float | None = described("timeout")
    draft: str | None = described("draft")
    thinking: bool | str | None = Field(None, description=THINKING)


class _Answering:
    """What both kinds of models share."""

    can_stream = True
    supports_schema = True
    supports_tools = True
    needs_key: str | None = None
    attachment_types: set[str] | frozenset[str] = frozenset()
    Options: type[llm.Options] = Options

    def __init__(self, named: Named) -> None:
        self.named = named
        self.model_id = named.id
        if "vision" in named.options:
            self.attachment_types = IMAGES

    def __str__(self) -> str:
        return f"Stretto: {self.model_id}"

    def _request(self, model: Any, prompt: llm.Prompt) -> tuple[list[int], dict[str, Any], Any]:
        """The prompt's ids, the options, and the plan that finds calls of tools in the answer."""
        options = {name: value for name, value in prompt.options if value is not None}
        thinking = options.pop("thinking", None)
        if prompt.schema:
            options["grammar"] = prompt.schema
        if not model.has_template:
            return self._raw(model, prompt), options, None
        template = None if thinking is None else model.thinking(thinking)
        plan = model.tool_plan(tool_descriptions(prompt.tools) or None)
        ids = model.chat_prompt(conversation(prompt.messages), tools=plan.shown, template=template)
        return ids, plan.options({"reasoning": True, **options}), plan

    def _raw(self, model: Any, prompt: llm.Prompt) -> list[int]:
        """The prompt of a model that was not trained to answer: it continues a text."""
        messages = conversation(prompt.messages)
        if len(messages) != 1 or not isinstance(messages[0]["content"], str) or prompt.tools:
            raise llm.ModelError(f"{self.model_id} has no chat template: it continues one text, without more")
        ids: list[int] = model.tokenizer.encode(messages[0]["content"], special=True)
        return ids


class StrettoModel(_Answering, llm.Model):  # type: ignore[misc]  # llm types its options as one class
    """A model of Stretto."""

    def execute(
        self,
        prompt: llm.Prompt,
        stream: bool,
        response: llm.Response,
        conversation: llm.Conversation | None = None,
    ) -> Iterator[str | StreamEvent]:
        """Answer a prompt, piece by piece."""
        with explained():
            model = self.named.load()
            ids, options, plan = self._request(model, prompt)
            tokens = model.stream(ids, **options)
            if not (plan and plan.reader):
                for token in tokens:
                    yield from _events(token)
            yield from _finished(response, tokens.result, plan)


class AsyncStrettoModel(_Answering, llm.AsyncModel):  # type: ignore[misc]
    """A model of Stretto, for asyncio."""

    async def execute(
        self,
        prompt: llm.Prompt,
        stream: bool,
        response: llm.AsyncResponse,
        conversation: llm.AsyncConversation | None = None,
    ) -> AsyncGenerator[str | StreamEvent, None]:
        """Answer a prompt, piece by piece."""
        with explained():
            model = await asyncio.to_thread(self.named.load)
            ids, options, plan = await asyncio.to_thread(self._request, model, prompt)
            tokens = model.astream(ids, **options)
            if not (plan and plan.reader):
                async for token in tokens:
                    for event in _events(token):
                        yield event
            for event in _finished(response, await tokens.result(), plan):
                yield event


@contextmanager
def explained() -> Iterator[None]:
    """Errors of Stretto as errors that llm shows."""
    try:
        yield
    except stretto.StrettoError as error:
        raise llm.ModelError(str(error)) from error


def _events(token: stretto.Token) -> Iterator[str | StreamEvent]:
    if token.text:
        yield StreamEvent("reasoning", token.text) if token.is_reasoning else token.text


def _finished(response: Any, result: stretto.Result, plan: Any) -> Iterator[str | StreamEvent]:
    """Note what was used; with tools, what the answer says, and whom it calls."""
    if plan and plan.reader:
        result = plan.read(result)
        if result.reasoning:
            yield StreamEvent("reasoning", result.reasoning)
        if result.text:
            yield result.text
        for call in result.tool_calls:
            response.add_tool_call(llm.ToolCall(call.name, call.arguments, call.id))
    usage = result.usage
    details = {"cached_tokens": usage.cached_tokens} if usage.cached_tokens else None
    response.set_usage(input=usage.prompt_tokens, output=usage.completion_tokens, details=details)
    response.response_json = {
        "finish_reason": result.finish_reason,
        "seed": result.seed,
        "tokens_per_second": round(result.timings.tokens_per_second, 1),
    }
