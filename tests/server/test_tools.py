"""Tools: calls are told apart from what is said, whole and streamed, by OpenAI's clients and by Ollama's."""

import json

import jsonschema
import ollama
import openai
import pytest

from serving import serving
from stretto.server.calls import CallWatcher
from tool_models import SAID, make

PARAMETERS = {
    "type": "object",
    "properties": {"town": {"type": "string", "maxLength": 9}},
    "required": ["town"],
}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "x", "parameters": PARAMETERS}}
TOOLS = [WEATHER, {"type": "function", "function": {"name": "now"}}]
HELLO = [{"role": "user", "content": "Is it cold in Oslo?"}]


def client_of(server):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def streamed(client, **asked):
    """The content, the calls and the reason of a streamed answer."""
    content, calls, reason = "", {}, None
    with client.chat.completions.create(**asked, stream=True) as stream:
        for chunk in stream:
            (choice,) = chunk.choices
            content += choice.delta.content or ""
            reason = choice.finish_reason or reason
            for call in choice.delta.tool_calls or ():
                calls[call.index] = (call.id, call.function.name, call.function.arguments)
    return content, [calls[i] for i in sorted(calls)], reason


@pytest.mark.parametrize("name", SAID)
def test_calls_are_found_whole_and_streamed(name):
    with serving(lambda entry: make(name, SAID[name])) as server, client_of(server) as client:
        asked = {"model": "mock", "messages": HELLO, "tools": TOOLS, "temperature": 0}
        (choice,) = client.chat.completions.create(**asked).choices
        assert choice.finish_reason == "tool_calls"
        calls = [
            (call.function.name, json.loads(call.function.arguments)) for call in choice.message.tool_calls
        ]
        assert calls == [("weather", {"town": "Oslo"}), ("now", {})]
        content, pieces, reason = streamed(client, **asked)
        assert content.strip() == (choice.message.content or "")
        assert reason == "tool_calls"
        assert [(i, n, json.loads(a)) for i, n, a in pieces] == [
            (call.id, call.function.name, json.loads(call.function.arguments))
            for call in choice.message.tool_calls
        ]
        # The conversation goes on with the answers.
        turn = [*HELLO, choice.message.model_dump(exclude_none=True)]
        turn += [
            {"role": "tool", "tool_call_id": call.id, "content": "7"} for call in choice.message.tool_calls
        ]
        assert client.chat.completions.create(**{**asked, "messages": turn}).usage.prompt_tokens > 100


@pytest.mark.parametrize("name", SAID)
@pytest.mark.parametrize("text", ["Just <words>, {no} [calls].", "<", "{"])
def test_what_is_no_call_is_said(name, text):
    with serving(lambda entry: make(name, text)) as server, client_of(server) as client:
        asked = {"model": "mock", "messages": HELLO, "tools": TOOLS, "temperature": 0}
        (choice,) = client.chat.completions.create(**asked).choices
        assert (choice.message.content, choice.message.tool_calls) == (text, None)
        assert streamed(client, **asked) == (text, [], "stop")


def test_text_is_shown_as_soon_as_it_is_no_call():
    llm = make("chatml-tools", "x")
    watcher = CallWatcher(llm.tool_plan(TOOLS), llm.tokenizer)
    shown = [watcher.push(token) for token in llm.stream("Hi", temperature=0)]
    assert shown[0] == "x"
    llm = make("chatml-tools", "a <tool_cat>")
    watcher = CallWatcher(llm.tool_plan(TOOLS), llm.tokenizer)
    shown = [watcher.push(token) for token in llm.stream("Hi", temperature=0)]
    assert "".join(shown) == "a <tool_cat>"
    assert shown[0] == "a"


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_call_that_is_required_is_valid(choice):
    with serving(lambda entry: make("chatml-tools", None)) as server, client_of(server) as client:
        for seed in range(3):
            answer = client.chat.completions.create(
                model="mock", messages=HELLO, tools=TOOLS, tool_choice=choice, seed=seed
            )
            for call in answer.choices[0].message.tool_calls:
                if call.function.name == "weather":
                    jsonschema.validate(json.loads(call.function.arguments), PARAMETERS)
                else:
                    assert choice == "required"


def test_ollama_calls_tools():
    with serving(lambda entry: make("chatml-tools", SAID["chatml-tools"])) as server:
        client = ollama.Client(host=server.url)
        asked = {"model": "mock", "messages": HELLO, "tools": TOOLS, "options": {"temperature": 0}}
        whole = client.chat(**asked).message
        calls = [(call.function.name, dict(call.function.arguments)) for call in whole.tool_calls]
        assert calls == [("weather", {"town": "Oslo"}), ("now", {})]
        assert whole.content == "Let me < see."
        pieces = list(client.chat(**asked, stream=True))
        assert "".join(piece.message.content for piece in pieces).strip() == whole.content
        (told,) = [piece.message.tool_calls for piece in pieces if piece.message.tool_calls]
        assert [call.function.name for call in told] == ["weather", "now"]
        turn = [
            *HELLO,
            whole.model_dump(exclude_none=True),
            {"role": "tool", "tool_name": "now", "content": "7"},
        ]
        assert client.chat(**{**asked, "messages": turn}).prompt_eval_count > 100
        client._client.close()


def test_what_is_wrong_with_tools_is_said():
    with serving() as server, client_of(server) as client:  # a template without tools
        for wrong, said in [
            ({"tools": TOOLS}, "tools"),
            ({"tools": TOOLS, "parallel_tool_calls": False}, "parallel_tool_calls"),
            ({"tool_choice": "required"}, "tool_choice"),
            ({"tools": [WEATHER] * 200}, "at most 128"),
            ({"tools": [{"type": "web_search"}]}, "tools"),
        ]:
            with pytest.raises(openai.BadRequestError, match=said):
                client.chat.completions.create(model="mock", messages=HELLO, extra_body=wrong)
        plain = client.chat.completions.create(model="mock", messages=HELLO, tools=TOOLS, tool_choice="none")
        assert plain.choices[0].message.tool_calls is None
