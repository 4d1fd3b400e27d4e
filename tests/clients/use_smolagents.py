"""smolagents: an agent that calls a tool and gives its final answer."""

import sys

from smolagents import OpenAIModel, ToolCallingAgent, tool


@tool
def weather(town: str) -> str:
    """How cold it is.

    Args:
        town: Where.
    """
    return f"-3 degrees in {town}"


model = OpenAIModel(model_id="agent", api_base=f"{sys.argv[1]}/v1", api_key="none")
agent = ToolCallingAgent([weather], model, max_steps=4)
assert agent.run("Is it cold in Oslo?") == "It is -3 degrees in Oslo."
calls = [call.name for step in agent.memory.steps for call in getattr(step, "tool_calls", None) or ()]
assert calls == ["weather", "final_answer"], calls
