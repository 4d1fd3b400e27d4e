"""Chat requests of every protocol, once they are in OpenAI's form: tools, prompt, and the texts queued."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stretto.server.calls import plan_of
from stretto.server.chat import Prompt, prompt_of
from stretto.server.errors import ApiError, translate
from stretto.server.generation import Generation
from stretto.server.options import chat_options
from stretto.server.schemas import ChatRequest
from stretto.server.settings import RequestLimits, Settings
from stretto.server.structured import grammar_of
from stretto.tools.plan import ToolPlan


def options_of(body: ChatRequest, limits: RequestLimits) -> dict[str, Any]:
    """The options of the engine."""
    return {**chat_options(body, limits), **grammar_of(body, limits)}


async def planned(
    body: ChatRequest, generation: Generation, settings: Settings, thinking: dict[str, Any] | None = None
) -> tuple[ToolPlan, Prompt]:
    """The plan of the tools, and the prompt as a function that makes it."""
    plan = await plan_of(body, generation.lease.llm, settings.limits, generation.caller.name)
    return plan, await prompt_of(body, generation, settings, plan, thinking)


async def converse(
    body: ChatRequest,
    generation: Generation,
    settings: Settings,
    options: dict[str, Any],
    thinking: dict[str, Any] | None = None,
) -> ToolPlan:
    """Queue the answer to a conversation; returns the plan of its tools, which reads the answer."""
    plan, prompt = await planned(body, generation, settings, thinking)
    follow = bool(body.stream and body.return_progress)
    await generation.start([prompt], plan.options({"reasoning": True, **options}), follow=follow)
    return plan


def renamed(error: Exception, names: Mapping[str, str], *fields: str) -> ApiError:
    """An error about a chat request as one about the body it was made from; `names` are of its fields."""
    found = translate(error, *fields)
    param = found.param
    if param is not None and (name := names.get(param)) is not None:
        found.param = name
        found.message = found.message.replace(param, name)
    return found
