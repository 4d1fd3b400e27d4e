"""LangChain by OpenAI's protocol: chats, streams, tools, structured output, embeddings, responses."""

import sys

import pydantic
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings


class Place(pydantic.BaseModel):
    """Where it is."""

    town: str


@tool
def weather(town: str) -> str:
    """How cold it is."""
    return f"-3 degrees in {town}"


base = {"base_url": f"{sys.argv[1]}/v1", "api_key": "none"}
for options in ({}, {"use_responses_api": True}):
    chat = ChatOpenAI(model="agent", **base, **options)
    assert chat.invoke("Is it cold in Oslo?").text == "It is -3 degrees in Oslo."
    assert "".join(chunk.text for chunk in chat.stream("Is it cold?")) == "It is -3 degrees in Oslo."
    bound = chat.bind_tools([weather])
    first = bound.invoke("Is it cold in Oslo?")
    assert first.tool_calls[0]["args"] == {"town": "Oslo"}, first
    second = bound.invoke([("user", "Is it cold in Oslo?"), first, weather.invoke(first.tool_calls[0])])
    assert second.text == "It is -3 degrees in Oslo.", second
    for method in ("function_calling", "json_schema"):
        shaped = chat.with_structured_output(Place, method=method)
        assert shaped.invoke("Where is the Munch museum?") == Place(town="Oslo")
embeddings = OpenAIEmbeddings(model="smollm2", check_embedding_ctx_length=False, **base)
assert len(embeddings.embed_documents(["a cat", "a dog"])) == 2
