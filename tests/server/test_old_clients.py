"""What old clients send: `functions`, `function_call`, messages about them; and fields that do nothing."""

import json

import pytest

import tool_models
from serving import HELLO, serving, visiting

PARAMETERS = {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]}

ASKED = {
    "model": "mock",
    "messages": [{"role": "user", "content": "Is it cold in Oslo?"}],
    "functions": [{"name": "weather", "parameters": PARAMETERS}, {"name": "now"}],
}


@pytest.fixture(scope="module")
def server():
    with serving(lambda entry: tool_models.make("chatml-tools")) as running:
        yield running


def test_functions_are_called_whole_and_streamed(client):
    (choice,) = client.chat.completions.create(**ASKED).choices
    call = choice.message.function_call
    assert (call.name, json.loads(call.arguments)) == ("weather", {"town": "Oslo"})
    assert (choice.finish_reason, choice.message.tool_calls) == ("function_call", None)
    with client.chat.completions.create(**ASKED, stream=True) as stream:
        deltas = [chunk.choices[0].delta for chunk in stream]
    (streamed,) = [delta.function_call for delta in deltas if delta.function_call]
    assert (streamed.name, json.loads(streamed.arguments)) == ("weather", {"town": "Oslo"})
    assert "".join(delta.content or "" for delta in deltas).strip() == choice.message.content


def test_results_of_functions_go_back(client):
    (choice,) = client.chat.completions.create(**ASKED).choices
    result = {"role": "function", "name": "weather", "content": "-3 degrees"}
    talk = [*ASKED["messages"], choice.message.to_dict(), result]
    used = client.chat.completions.create(**{**ASKED, "messages": talk}).usage
    call = {"id": "call00001", "type": "function", "function": choice.message.function_call.to_dict()}
    said = {"role": "assistant", "content": choice.message.content, "tool_calls": [call]}
    tools = [{"type": "function", "function": one} for one in ASKED["functions"]]
    answer = {"role": "tool", "tool_call_id": "call00001", "content": "-3 degrees"}
    same = client.chat.completions.create(
        model="mock", messages=[*ASKED["messages"], said, answer], tools=tools
    )
    assert used.prompt_tokens == same.usage.prompt_tokens


def test_a_function_may_be_named_or_forbidden(web):
    def asked(**more):
        return web.post("/v1/chat/completions", json={**ASKED, **more}).json()

    assert "function_call" not in asked(function_call="none")["choices"][0]["message"]
    assert asked(function_call={"name": "now"})["choices"][0]["message"]["function_call"]["name"] == "now"
    assert asked(tools=[])["error"]["param"] == "functions"
    lost = [*ASKED["messages"], {"role": "function", "name": "other", "content": "x"}]
    assert asked(messages=lost)["error"]["param"] == "messages[1].name"


def test_fields_that_do_nothing_are_accepted():
    hints = {
        "store": True,
        "service_tier": "flex",
        "verbosity": "low",
        "user": "me",
        "metadata": {"a": "b"},
        "prompt_cache_key": "k",
        "prompt_cache_retention": "24h",
        "safety_identifier": "s",
        "prediction": {"type": "content", "content": "Hello"},
        "modalities": ["text"],
        "stream_options": {"include_obfuscation": True},
    }
    with visiting() as (_, web):
        asked = {"model": "mock", "messages": ASKED["messages"], "temperature": 0, "stream": True, **hints}
        text = web.post("/v1/chat/completions", json=asked).text
    chunks = [json.loads(line[6:]) for line in text.split("\n\n") if line and line != "data: [DONE]"]
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == HELLO
