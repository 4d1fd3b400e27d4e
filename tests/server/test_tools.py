"""Tools: calls are told apart from what is said, whole and streamed, by OpenAI's clients and by Ollama's."""

import json
import re

import jsonschema
import ollama
import openai
import pytest

from serving import serving
from stretto.server.generation.calls import CallWatcher
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
                given, name, arguments = calls.get(call.index, (call.id, call.function.name, ""))
                calls[call.index] = (given, name, arguments + call.function.arguments)
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
        assert [(name, json.loads(arguments)) for _, name, arguments in pieces] == calls
        assert all(re.fullmatch("[0-9a-z]{9}", given) for given, _, _ in pieces)
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


def test_arguments_are_streamed_as_they_come():
    with (
        serving(lambda entry: make("chatml-tools", SAID["chatml-tools"])) as server,
        client_of(server) as client,
    ):
        asked = {"model": "mock", "messages": HELLO, "tools": TOOLS, "temperature": 0, "stream": True}
        pieces = []
        with client.chat.completions.create(**asked) as stream:
            for chunk in stream:
                for call in chunk.choices[0].delta.tool_calls or ():
                    pieces.append((call.index, call.function.name, call.function.arguments))
    assert [name for _, name, _ in pieces if name] == ["weather", "now"]
    assert len([1 for index, name, text in pieces if index == 0 and not name and text]) > 3
    assert json.loads("".join(text for index, _, text in pieces if index == 0)) == {"town": "Oslo"}


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_one_call_at_most_unless_several_are_wanted(choice):
    said = SAID["chatml-tools"] if choice == "auto" else None
    with serving(lambda entry: make("chatml-tools", said)) as server, client_of(server) as client:
        asked = {"model": "mock", "messages": HELLO, "tools": TOOLS, "parallel_tool_calls": False}
        asked |= {"tool_choice": choice, "temperature": 0}
        (choice,) = client.chat.completions.create(**asked).choices
        assert len(choice.message.tool_calls) == 1
        assert len(streamed(client, **asked)[1]) == 1


def test_a_required_call_is_one_unless_several_are_asked_for():
    with serving(lambda entry: make("chatml-tools", None)) as server, client_of(server) as client:

        def most(**options):
            asked = {"model": "mock", "messages": HELLO, "tools": TOOLS[1:], "tool_choice": "required"}
            answers = [client.chat.completions.create(**asked, seed=seed, **options) for seed in range(8)]
            return max(len(answer.choices[0].message.tool_calls) for answer in answers)

        assert most() == most(parallel_tool_calls=False) == 1
        assert most(parallel_tool_calls=True) > 1


def test_a_template_without_tools_gets_them_in_a_message():
    say = 'Well. {"name": "weather", "arguments": {"town": "Oslo"}}'
    with serving(lambda entry: make("smollm2", say)) as server, client_of(server) as client:
        asked = {"model": "mock", "messages": HELLO, "tools": TOOLS, "temperature": 0}
        (choice,) = client.chat.completions.create(**asked).choices
        (call,) = choice.message.tool_calls
        assert (choice.message.content, call.function.name) == ("Well.", "weather")
        content, (piece,), reason = streamed(client, **asked)
        assert (content.strip(), piece[1:], reason) == (
            "Well.",
            ("weather", '{"town": "Oslo"}'),
            "tool_calls",
        )


def test_text_is_shown_as_soon_as_it_is_no_call():
    llm = make("chatml-tools", "x")
    watcher = CallWatcher(llm.tool_plan(TOOLS))
    shown = [watcher.push(token) for token in llm.stream("Hi", temperature=0)]
    assert shown[0] == "x"
    llm = make("chatml-tools", "a <tool_cat>")
    watcher = CallWatcher(llm.tool_plan(TOOLS))
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


def test_reasoning_that_a_grammar_writes_before_a_call_is_not_said():
    with serving(lambda entry: make("qwen3", None)) as server, client_of(server) as client:
        asked = {"model": "mock", "messages": HELLO, "tools": [WEATHER], "tool_choice": "required"}
        asked["parallel_tool_calls"] = False
        content, pieces, _ = streamed(client, **asked, temperature=0, max_tokens=200)
        assert content.strip() == ""
        assert [name for _, name, _ in pieces] == ["weather"]
        (choice,) = client.chat.completions.create(**asked, temperature=0, max_tokens=200).choices
        assert not choice.message.content
        assert len(choice.message.tool_calls) == 1


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
        client.close()


def test_what_is_wrong_with_tools_is_said():
    with serving() as server, client_of(server) as client:
        for wrong, said in [
            ({"tool_choice": "required"}, "tool_choice"),
            ({"tools": [WEATHER] * 200}, "at most 128"),
            ({"tools": [{"type": "web_search"}]}, "tools"),
        ]:
            with pytest.raises(openai.BadRequestError, match=said):
                client.chat.completions.create(model="mock", messages=HELLO, extra_body=wrong)
        plain = client.chat.completions.create(model="mock", messages=HELLO, tools=TOOLS, tool_choice="none")
        assert plain.choices[0].message.tool_calls is None


def test_an_answer_has_a_schema_beside_tools():
    shape = {"type": "json_schema", "json_schema": {"name": "x", "schema": PARAMETERS}}
    call = '<tool_call>{"name": "weather", "arguments": {"town": "Oslo"}}</tool_call>'
    said = {"call": call, "answer": '{"town": "Bergen"}', "noise": None}
    for kind, say in said.items():
        with serving(lambda entry, say=say: make("chatml-tools", say)) as server, client_of(server) as client:
            asked = {"model": "mock", "messages": HELLO, "tools": TOOLS, "response_format": shape}
            (choice,) = client.chat.completions.create(**asked, temperature=0, max_tokens=2000).choices
            if kind == "call":
                assert [call.function.name for call in choice.message.tool_calls] == ["weather"]
            elif kind == "answer":
                assert json.loads(choice.message.content) == {"town": "Bergen"}
            else:  # either of them, and nothing else
                calls = choice.message.tool_calls or ()
                texts = [call.function.arguments for call in calls if call.function.name == "weather"]
                for text in texts if calls else [choice.message.content]:
                    jsonschema.validate(json.loads(text), PARAMETERS)
            one = {**asked, "tool_choice": {"type": "function", "function": {"name": "weather"}}}
            (choice,) = client.chat.completions.create(**one, temperature=0, max_tokens=2000).choices
            assert choice.message.tool_calls[0].function.name == "weather"


def test_other_grammars_do_not_go_with_tools():
    with serving(lambda entry: make("chatml-tools")) as server, client_of(server) as client:
        grammar = {"grammar": {"type": "regex", "pattern": "a+"}}
        with pytest.raises(openai.BadRequestError, match="grammar with tools"):
            client.chat.completions.create(model="mock", messages=HELLO, tools=TOOLS, extra_body=grammar)
