"""LlamaIndex: chats, streams, and a function that is called."""

import sys

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike


def weather(town: str) -> str:
    """How cold it is."""
    return f"-3 degrees in {town}"


llm = OpenAILike(
    model="agent",
    api_base=f"{sys.argv[1]}/v1",
    api_key="none",
    is_chat_model=True,
    is_function_calling_model=True,
    context_window=16384,
)
asked = [ChatMessage(role="user", content="Is it cold in Oslo?")]
assert llm.chat(asked).message.content == "It is -3 degrees in Oslo."
assert "".join(piece.delta or "" for piece in llm.stream_chat(asked)) == "It is -3 degrees in Oslo."
assert llm.complete("Is it cold?").text == "It is -3 degrees in Oslo."
made = llm.predict_and_call([FunctionTool.from_defaults(weather)], "Is it cold in Oslo?")
assert made.response == "-3 degrees in Oslo", made
