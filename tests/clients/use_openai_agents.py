"""OpenAI's Agents SDK: an agent with a tool, by responses and by chats, whole and streamed."""

import asyncio
import sys

import agents
import openai

agents.set_tracing_disabled(True)
client = openai.AsyncOpenAI(base_url=f"{sys.argv[1]}/v1", api_key="none")
called = []


@agents.function_tool
def weather(town: str) -> str:
    """How cold it is."""
    called.append(town)
    return f"-3 degrees in {town}"


async def main():
    for kind in (agents.OpenAIResponsesModel, agents.OpenAIChatCompletionsModel):
        agent = agents.Agent("Weather", tools=[weather], model=kind("agent", client))
        done = await agents.Runner.run(agent, "Is it cold in Oslo?")
        assert done.final_output == "It is -3 degrees in Oslo.", done
        streamed = agents.Runner.run_streamed(agent, "Is it cold in Oslo?")
        kinds = [event.type async for event in streamed.stream_events()]
        assert streamed.final_output == "It is -3 degrees in Oslo.", kinds
        print(kind.__name__, "ok")
    assert called == ["Oslo"] * 4, called


asyncio.run(main())
