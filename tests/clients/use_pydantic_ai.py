"""Pydantic AI: agents with a tool and a structured answer, by three protocols."""

import sys

import anthropic
import pydantic
from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider


class Report(pydantic.BaseModel):
    """How cold it is, and where."""

    town: str
    degrees: int


url = sys.argv[1]
provider = OpenAIProvider(base_url=f"{url}/v1", api_key="none")
client = anthropic.AsyncAnthropic(base_url=url, api_key="none")
models = (
    OpenAIChatModel("agent", provider=provider),
    OpenAIResponsesModel("agent", provider=provider),
    AnthropicModel("agent", provider=AnthropicProvider(anthropic_client=client)),
)


def weather(town: str) -> str:
    """How cold it is."""
    called.append(town)
    return f"-3 degrees in {town}"


for model in models:
    called = []
    assert Agent(model, tools=[weather]).run_sync("Is it cold in Oslo?").output == "It is -3 degrees in Oslo."
    report = Agent(model, tools=[weather], output_type=Report).run_sync("Is it cold in Oslo?").output
    assert report == Report(town="Oslo", degrees=-3), report
    assert called == ["Oslo", "Oslo"]
    print(type(model).__name__, "ok")
