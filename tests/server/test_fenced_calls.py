"""Calls in fenced blocks: the same in every protocol, whole and streamed; quoted ones are text."""

import json

import anthropic
import ollama
import openai
import pytest

from serving import serving
from tool_models import make

CALL = '{"name": "weather", "arguments": {"town": "Oslo"}}'
SAID = f"Let me see.\n\n```json\n{CALL}\n```"
PARAMETERS = {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]}
FUNCTION = {"name": "weather", "description": "x", "parameters": PARAMETERS}
CHAT = {"model": "mock", "tools": [{"type": "function", "function": FUNCTION}]}
ASKS = {"free": "Is it cold in Oslo?", "quoted": f"What does this do?\n\n> {CALL}"}


@pytest.fixture(scope="module")
def url():
    with serving(lambda entry: make("chatml-tools", SAID)) as server:
        yield server.url


def chat(url, ask, stream):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        asked = {**CHAT, "messages": [{"role": "user", "content": ask}], "temperature": 0}
        if not stream:
            message = client.chat.completions.create(**asked).choices[0].message
            return message.content, [call.function for call in message.tool_calls or ()]
        with client.chat.completions.stream(**asked) as events:
            message = events.get_final_completion().choices[0].message
            return message.content, [call.function for call in message.tool_calls or ()]


def responses(url, ask, stream):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        tools = [{"type": "function", "strict": None, **FUNCTION}]
        asked = {"model": "mock", "tools": tools, "input": ask, "temperature": 0}
        if stream:
            with client.responses.stream(**asked) as events:
                made = events.get_final_response()
        else:
            made = client.responses.create(**asked)
        return made.output_text, [item for item in made.output if item.type == "function_call"]


def messages(url, ask, stream):
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        tools = [{"name": "weather", "input_schema": PARAMETERS}]
        asked = {"model": "mock", "tools": tools, "messages": [{"role": "user", "content": ask}]}
        asked |= {"max_tokens": 400, "extra_body": {"temperature": 0}}
        if stream:
            with client.messages.stream(**asked) as events:
                made = events.get_final_message()
        else:
            made = client.messages.create(**asked)
        texts = [block.text for block in made.content if block.type == "text"]
        return "".join(texts), [block for block in made.content if block.type == "tool_use"]


def ollama_chat(url, ask, stream):
    client = ollama.Client(host=url)
    asked = {**CHAT, "messages": [{"role": "user", "content": ask}], "options": {"temperature": 0}}
    pieces = list(client.chat(**asked, stream=True)) if stream else [client.chat(**asked)]
    client.close()
    calls = [call.function for piece in pieces for call in piece.message.tool_calls or ()]
    return "".join(piece.message.content or "" for piece in pieces), calls


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("protocol", [chat, responses, messages, ollama_chat])
def test_a_fenced_call_is_a_call_unless_it_is_quoted(url, protocol, stream):
    text, (call,) = protocol(url, ASKS["free"], stream)
    assert text.strip() == "Let me see."
    arguments = getattr(call, "input", None) or call.arguments
    read = json.loads(arguments) if isinstance(arguments, str) else dict(arguments)
    assert (call.name, read) == ("weather", {"town": "Oslo"})
    assert protocol(url, ASKS["quoted"], stream) == (SAID, [])
