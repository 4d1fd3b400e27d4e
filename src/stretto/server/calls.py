"""Tool calls in an answer: streamed text without them, and the parsed calls at the end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from stretto import Result, Token
from stretto.llm import LLM
from stretto.server.errors import ApiError, unsupported
from stretto.server.schemas import ChatRequest, NamedTool
from stretto.server.settings import RequestLimits
from stretto.server.structured import check_size
from stretto.text.tokenizer import Tokenizer
from stretto.tools.plan import ToolPlan


async def plan_of(body: ChatRequest, llm: LLM, limits: RequestLimits) -> ToolPlan:
    """The tool plan of a chat request."""
    choice = body.tool_choice
    named = isinstance(choice, NamedTool)
    if body.parallel_tool_calls is False and body.tools and choice != "none" and not named:
        raise unsupported(
            "parallel_tool_calls: false is only supported where tool_choice names a function",
            "parallel_tool_calls",
        )
    check_count(body.tools, limits)
    tools = None if body.tools is None else [tool.model_dump(exclude_none=True) for tool in body.tools]
    return await tool_plan(
        llm, tools, choice.model_dump() if isinstance(choice, NamedTool) else choice, limits
    )


async def tool_plan(
    llm: LLM, tools: list[dict[str, Any]] | None, choice: Any, limits: RequestLimits
) -> ToolPlan:
    """As `llm.tool_plan`, with the limits of the server; an empty list is no tools."""
    if tools:
        check_count(tools, limits)
        check_size("tools", tools, limits)
        return await asyncio.to_thread(llm.tool_plan, tools, choice)
    return llm.tool_plan(None, choice)


def check_count(tools: Sequence[object] | None, limits: RequestLimits) -> None:
    """Refuse more tools than the operator allows."""
    if tools is not None and len(tools) > limits.tools:
        message = f"tools has {len(tools):,} entries; at most {limits.tools:,} are served"
        raise ApiError(400, message, param="tools", code="over_limit")


class CallWatcher:
    """Follows one text of a chat with tools.

    Text that cannot be a call is streamed at once, as is reasoning. From the start of a call on, all is held
    back until the end, when the calls are parsed.
    """

    def __init__(self, plan: ToolPlan, tokenizer: Tokenizer, begun: Sequence[int] = ()) -> None:
        self._plan = plan
        self._marker = plan.reader.marker if plan.reader is not None else ""
        self._spelled = tokenizer.detokenizer(special=True)
        self._spelling = ""  # the end of the text, with special tokens
        self._held: list[str] = []
        self._shown: list[str] = []
        self._has_call = False
        self._begun = begun  # ids that the answer begins with; they were sent before
        for token in begun:
            self._spelling += self._spelled.push(token)
            if not self._has_call:
                self._may_be_call()

    def push(self, token: Token) -> str:
        """Add a token; returns the text that can be streamed now."""
        if token.is_reasoning and token.text:
            return token.text
        if token.id is not None:
            self._spelling += self._spelled.push(token.id)
        self._held.append(token.text)
        if self._has_call or self._may_be_call() or token.is_reasoning:
            return ""
        text = "".join(self._held)
        self._held = []
        self._shown.append(text)
        return text

    def end(self, result: Result) -> tuple[str, Result]:
        """The rest of the text to be streamed, and the result with its calls."""
        read = self._plan.read(result, self._begun)
        if not read.tool_calls:
            return "".join(self._held), read
        shown = "".join(self._shown).strip()
        rest = read.text.removeprefix(shown) if shown else read.text
        return rest if rest.strip() else "", read

    def _may_be_call(self) -> bool:
        """Whether there is a call, or the end of the text may be a prefix of its marker."""
        text, marker = self._spelling, self._marker
        if not marker:
            self._has_call = text.lstrip().startswith("{")
            return self._has_call or not text.strip()
        self._has_call = marker in text
        self._spelling = text[-len(marker) :] if not self._has_call else ""
        return self._has_call or any(text.endswith(marker[:n]) for n in range(1, len(marker)))


def openai_calls(result: Result) -> list[dict[str, Any]]:
    """The calls of an answer as OpenAI's clients read them."""
    return [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)},
        }
        for call in result.tool_calls
    ]


def ollama_calls(result: Result) -> list[dict[str, Any]]:
    """The calls of an answer as Ollama's clients read them."""
    return [{"function": {"name": call.name, "arguments": call.arguments}} for call in result.tool_calls]
