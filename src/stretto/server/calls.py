"""Calls of tools in an answer: what may be shown while it comes, and what is a call in the end."""

from __future__ import annotations

import asyncio
import json
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
    """What a request's tools mean for its model."""
    choice = body.tool_choice
    named = isinstance(choice, NamedTool)
    if body.parallel_tool_calls is False and body.tools and choice != "none" and not named:
        raise unsupported(
            "parallel_tool_calls: false is only kept to where tool_choice names a function",
            "parallel_tool_calls",
        )
    tools = None if body.tools is None else [tool.model_dump(exclude_none=True) for tool in body.tools]
    return await tool_plan(
        llm, tools, choice.model_dump() if isinstance(choice, NamedTool) else choice, limits
    )


async def tool_plan(
    llm: LLM, tools: list[dict[str, Any]] | None, choice: Any, limits: RequestLimits
) -> ToolPlan:
    """As `llm.tool_plan`, with the limits of the server; no tools at all are no tools."""
    if tools:
        if len(tools) > limits.tools:
            said = f"tools has {len(tools):,} entries; at most {limits.tools:,} are served"
            raise ApiError(400, said, param="tools", code="over_limit")
        check_size("tools", json.dumps(tools), limits)
        return await asyncio.to_thread(llm.tool_plan, tools, choice)
    return llm.tool_plan(None, choice)


class CallWatcher:
    """Follows one text of a chat with tools.

    What cannot be a call any more is shown at once. From where one begins, all is held back; in the end
    it is known what was one.
    """

    def __init__(self, plan: ToolPlan, tokenizer: Tokenizer) -> None:
        self._plan = plan
        self._marker = plan.reader.marker if plan.reader is not None else ""
        self._spelled = tokenizer.detokenizer(special=True)
        self._seen = ""  # with special tokens
        self._held: list[str] = []
        self._shown: list[str] = []
        self._begun = False

    def push(self, token: Token) -> str:
        """What may be shown now."""
        if token.id is not None:
            self._seen += self._spelled.push(token.id)
        self._held.append(token.text)
        if self._begun or self._may_begin():
            return ""
        text = "".join(self._held)
        self._held = []
        self._shown.append(text)
        return text

    def end(self, result: Result) -> tuple[str, Result]:
        """The rest of the text to be shown, and the result with its calls."""
        read = self._plan.read(result)
        if not read.tool_calls:
            return "".join(self._held), read
        shown = "".join(self._shown).strip()
        rest = read.text.removeprefix(shown) if shown else read.text
        return rest if rest.strip() else "", read

    def _may_begin(self) -> bool:
        """Whether a call has begun, or the end of the text may be the beginning of one."""
        seen, marker = self._seen, self._marker
        if not marker:
            self._begun = seen.lstrip().startswith("{")
            return self._begun or not seen.strip()
        self._begun = marker in seen
        self._seen = seen[-len(marker) :] if not self._begun else ""
        return self._begun or any(seen.endswith(marker[:n]) for n in range(1, len(marker)))


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
