"""LangChain by Ollama's protocol: chats, streams, tools, structured output, embeddings."""

import sys

import pydantic
from langchain_core.tools import tool
from langchain_ollama import ChatOllama, OllamaEmbeddings


class Place(pydantic.BaseModel):
    """Where it is."""

    town: str


@tool
def weather(town: str) -> str:
    """How cold it is."""
    return f"-3 degrees in {town}"


chat = ChatOllama(model="agent", base_url=sys.argv[1])
assert chat.invoke("Is it cold in Oslo?").text == "It is -3 degrees in Oslo."
assert "".join(chunk.text for chunk in chat.stream("Is it cold?")) == "It is -3 degrees in Oslo."
bound = chat.bind_tools([weather])
first = bound.invoke("Is it cold in Oslo?")
assert first.tool_calls[0]["args"] == {"town": "Oslo"}, first
second = bound.invoke([("user", "Is it cold in Oslo?"), first, weather.invoke(first.tool_calls[0])])
assert second.text == "It is -3 degrees in Oslo.", second
shaped = chat.with_structured_output(Place, method="json_schema")
assert shaped.invoke("Where is the Munch museum?") == Place(town="Oslo")
assert len(OllamaEmbeddings(model="smollm2", base_url=sys.argv[1]).embed_documents(["a cat", "a dog"])) == 2
