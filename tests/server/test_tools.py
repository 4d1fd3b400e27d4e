"""Tools: calls are told apart from what is said, whole and streamed, by OpenAI's clients and by Ollama's."""

import json
import re
from pathlib import Path

import jsonschema
import numpy as np
import ollama
import openai
import pytest

import vocabularies
from serving import serving
from stretto import LLM
from stretto.server.calls import CallWatcher
from stretto.testing import MockBackend
from stretto.text.bpe import BPETokenizer
from stretto.text.template import ChatTemplate

TEMPLATES = Path(__file__).parent.parent / "data" / "templates"
SPECIALS = {
    "chatml-tools": ["<|im_start|>", "<|im_end|>", "<|endoftext|>"],
    "mistral-nemo": [
        *("<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
        *("[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
    ],
    "smollm2": ["<|im_start|>", "<|im_end|>", "<|endoftext|>"],
}
OSLO = '{"name": "weather", "arguments": {"town": "Oslo"}'
SAID = {  # an answer with two calls, as the template's model writes it
    "chatml-tools": f"Let me < see.\n<tool_call>\n{OSLO}}}\n</tool_call>\n"
    '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
    "mistral-nemo": f'[TOOL_CALLS][{OSLO}, "id": "abcdefghi"}}, '
    '{"name": "now", "arguments": {}, "id": "123456789"}]',
}
PARAMETERS = {
    "type": "object",
    "properties": {"town": {"type": "string", "maxLength": 9}},
    "required": ["town"],
}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "x", "parameters": PARAMETERS}}
TOOLS = [WEATHER, {"type": "function", "function": {"name": "now"}}]
HELLO = [{"role": "user", "content": "Is it cold in Oslo?"}]


def make(name, say):
    """A model with a template that knows tools; it says a text, or noise."""
    specials = SPECIALS[name]
    values = vocabularies.bpe(specials=specials)
    end = values["tokens"].index(specials[1])
    tokenizer = BPETokenizer(vocabularies.metadata({**values, "eos_token_id": end}))
    source = (TEMPLATES / f"{name}.jinja").read_text()
    template = ChatTemplate(source, tokenizer.specials, bos=specials[0], eos=specials[1])

    def noise(seen):
        return np.random.default_rng(sum(seen)).standard_normal(tokenizer.n_vocab).astype(np.float32)

    script = noise if say is None else [*tokenizer.encode(say, special=True, bos=False), end]
    return LLM(MockBackend(script, tokenizer.n_vocab, 8192, 4096), tokenizer, template)


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
