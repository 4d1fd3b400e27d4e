"""`/v1/responses` with OpenAI's own package: whole and streamed, tools, schemas, reasoning, what is kept."""

import json
from contextlib import contextmanager

import httpx
import openai
import pydantic
import pytest

import thinking
import tool_models
from serving import HELLO, mock, serving, visiting
from stretto.server.settings import RequestLimits

ASKED = {"model": "mock", "input": "Hi", "temperature": 0}
PARAMETERS = {
    "type": "object",
    "properties": {"town": {"type": "string", "maxLength": 9}},
    "required": ["town"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "name": "weather",
    "description": "x",
    "parameters": PARAMETERS,
    "strict": True,
}
TOOLS = [WEATHER, {"type": "function", "name": "now", "parameters": None, "strict": None}]
COLD = {**ASKED, "input": "Is it cold in Oslo?", "tools": TOOLS}
NOISE = mock(lambda seen: [(7 * t + len(seen)) % 13 for t in range(258)])


class Town(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    town: str = pydantic.Field(max_length=9)


@contextmanager
def client_of(server, key="none"):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def caller():
    with serving(lambda entry: tool_models.make("chatml-tools")) as server, client_of(server) as made:
        yield made


def final(client, **asked):
    """The events of a stream, and the response that the package makes of them."""
    with client.responses.stream(**asked) as stream:
        events = list(stream)
        return events, stream.get_final_response()


def test_a_response_has_items_and_usage(client):
    made = client.responses.create(**ASKED, instructions="Be brief.", metadata={"a": "b"}, user="me")
    (item,) = made.output
    assert (made.object, made.status, made.model, made.output_text) == (
        "response",
        "completed",
        "mock",
        HELLO,
    )
    assert (item.type, item.role, item.status, item.content[0].type) == (
        "message",
        "assistant",
        "completed",
        "output_text",
    )
    assert (made.instructions, made.metadata, made.error) == ("Be brief.", {"a": "b"}, None)
    assert made.usage.output_tokens == len(HELLO)
    assert made.usage.total_tokens == made.usage.input_tokens + len(HELLO)
    short = client.responses.create(**ASKED, max_output_tokens=3)
    assert (short.status, short.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (short.output_text, short.output[0].status) == ("Hel", "incomplete")


def test_a_stream_has_the_events_that_the_package_adds_up(client):
    events, made = final(client, **ASKED)
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == made.output_text == HELLO
    assert client.responses.retrieve(made.id).output_text == HELLO
    with client.responses.create(**ASKED, max_output_tokens=3, stream=True) as stream:
        assert [event.type for event in stream][-1] == "response.incomplete"


def test_items_of_a_conversation_are_messages(client):
    talk = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "Hello.", "annotations": []}]},
        {"type": "message", "role": "user", "content": "And?"},
    ]
    made = client.responses.create(**{**ASKED, "input": talk})
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "And?"},
    ]
    same = client.chat.completions.create(model="mock", messages=messages)
    assert made.usage.input_tokens == same.usage.prompt_tokens
    assert (
        client.responses.input_tokens.count(model="mock", input=talk).input_tokens == same.usage.prompt_tokens
    )


def test_calls_are_items_whole_and_streamed(caller):
    whole = caller.responses.create(**COLD)
    events, streamed = final(caller, **COLD)
    for made in (whole, streamed):
        said, weather, now = made.output
        assert (said.type, made.output_text.strip()) == ("message", "Let me < see.")
        assert (weather.type, weather.name) == ("function_call", "weather")
        assert (json.loads(weather.arguments), json.loads(now.arguments)) == ({"town": "Oslo"}, {})
        assert weather.call_id != now.call_id
    assert "response.function_call_arguments.done" in [event.type for event in events]


def test_results_of_calls_go_back_by_hand_or_by_id(caller):
    first = caller.responses.create(**COLD)
    results = [
        {"type": "function_call_output", "call_id": first.output[1].call_id, "output": "-3 degrees"},
        {
            "type": "function_call_output",
            "call_id": first.output[2].call_id,
            "output": [{"type": "input_text", "text": "noon"}],
        },
    ]
    talk = [{"role": "user", "content": COLD["input"]}, *first.output, *results]
    by_hand = caller.responses.create(**{**COLD, "input": talk})
    by_id = caller.responses.create(**{**COLD, "input": results}, previous_response_id=first.id)
    assert by_id.previous_response_id == first.id
    assert by_hand.usage.input_tokens == by_id.usage.input_tokens > first.usage.input_tokens
    details = by_id.usage.input_tokens_details
    assert first.usage.input_tokens < details.cached_tokens < by_id.usage.input_tokens


@pytest.mark.parametrize(
    "choice",
    [
        "required",
        {"type": "function", "name": "weather"},
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "weather"}]},
    ],
)
def test_a_tool_is_called_where_one_has_to_be(choice):
    tools = TOOLS[:1] if choice == "required" else TOOLS
    with serving(lambda entry: tool_models.make("chatml-tools", None)) as server, client_of(server) as client:
        made = client.responses.create(**{**COLD, "tools": tools}, tool_choice=choice)
        assert made.output[0].name == "weather"
        assert json.loads(made.output[0].arguments).keys() == {"town"}


def test_a_schema_is_kept_to():
    with serving(NOISE) as server, client_of(server) as client:
        made = client.responses.parse(**ASKED, text_format=Town)
        assert isinstance(made.output_parsed, Town)
        made = client.responses.create(
            **ASKED, max_output_tokens=200, text={"format": {"type": "json_object"}, "verbosity": "low"}
        )
        assert made.output_text.startswith("{")


def test_reasoning_is_an_item_and_goes_back():
    kind = thinking.KINDS["qwen3"]
    with serving(lambda entry: thinking.make("qwen3")) as server, client_of(server) as client:
        asked = {**ASKED, "reasoning": {"effort": "high", "summary": "auto"}}
        whole = client.responses.create(**asked, include=["reasoning.encrypted_content"], store=False)
        events, streamed = final(client, **asked)
        for made in (whole, streamed):
            thoughts, said = made.output
            assert (thoughts.type, thoughts.content[0].text) == ("reasoning", kind.reasoning)
            assert (said.type, made.output_text) == ("message", kind.text)
            assert 0 < made.usage.output_tokens_details.reasoning_tokens < made.usage.output_tokens
        deltas = [event.delta for event in events if event.type == "response.reasoning_text.delta"]
        assert "".join(deltas) == kind.reasoning
        talk = [{"role": "user", "content": "Hi"}, *whole.output, {"role": "user", "content": "And?"}]
        assert client.responses.create(**{**ASKED, "input": talk}).output_text == kind.text
        none = client.responses.input_tokens.count(model="mock", input="Hi", reasoning={"effort": "none"})
        assert none.input_tokens > client.responses.input_tokens.count(model="mock", input="Hi").input_tokens


def test_logprobs_come_where_they_are_asked_for(client):
    asked = {**ASKED, "include": ["message.output_text.logprobs"], "top_logprobs": 2}
    whole = client.responses.create(**asked).output[0].content[0].logprobs
    _, streamed = final(client, **asked)
    assert [one.token for one in whole] == list(HELLO)
    assert [one.logprob for one in whole] == [one.logprob for one in streamed.output[0].content[0].logprobs]
    assert len(whole[0].top_logprobs) == 2
    assert not client.responses.create(**ASKED).output[0].content[0].logprobs


def test_a_response_is_kept_until_it_is_deleted(client):
    first = client.responses.create(**ASKED)
    assert client.responses.retrieve(first.id).to_dict() == first.to_dict()
    (item,) = client.responses.input_items.list(first.id).data
    assert (item.role, item.content[0].text) == ("user", "Hi")
    second = client.responses.create(**{**ASKED, "input": "And?"}, previous_response_id=first.id)
    assert second.usage.input_tokens > first.usage.input_tokens + len(HELLO)
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)
    third = client.responses.create(**{**ASKED, "input": "And?"}, previous_response_id=second.id)
    assert third.usage.input_tokens > second.usage.input_tokens


def test_what_is_not_kept_is_not_found(client):
    made = client.responses.create(**ASKED, store=False)
    with pytest.raises(openai.NotFoundError, match="previous_response_id"):
        client.responses.create(**ASKED, previous_response_id=made.id)


def test_the_oldest_make_room_and_keys_do_not_share():
    two_kept = serving(limits=RequestLimits(responses=2), api_keys=("one", "two"))
    with two_kept as server, client_of(server, "one") as one, client_of(server, "two") as two:
        ids = [one.responses.create(**ASKED).id for _ in range(3)]
        for client, name in ((one, ids[0]), (two, ids[2])):
            with pytest.raises(openai.NotFoundError):
                client.responses.retrieve(name)
        assert [one.responses.retrieve(kept).id for kept in ids[1:]] == ids[1:]
    with visiting(limits=RequestLimits(response_bytes=100)) as (_, web):
        made = web.post("/v1/responses", json=ASKED).json()
        assert web.get(f"/v1/responses/{made['id']}").status_code == 404


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"bogus": 1}, "bogus"),
        ({"background": 1}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"input": []}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input[0].content[0]"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": 3}}}}, "text.format"),
        ({"input": [{"role": "user", "content": "x" * 2000}]}, "input"),
    ],
)
def test_what_is_wrong_is_named(client, wrong, param):
    with pytest.raises(openai.BadRequestError) as caught:
        client.post("/responses", body={**ASKED, **wrong}, cast_to=object)
    assert caught.value.param == param


def test_an_error_in_a_stream_is_its_last_event():
    with visiting(mock(seconds=0.05)) as (server, web):
        with web.stream("POST", "/v1/responses", json={**ASKED, "stream": True}) as answer:
            lines = answer.iter_lines()
            assert next(lines) == "event: response.created"
            for generation in list(server.state.generations):
                generation.cancel()
            rest = list(lines)
        assert "event: response.failed" in rest
        assert json.loads(rest[-2].removeprefix("data: "))["response"]["error"]["code"] == "cancelled"


def test_tools_of_other_kinds_beside_functions_are_left_out(server):
    """Codex sends its own tools together with a namespace of others and a search."""
    ask = {
        **ASKED,
        "tools": [
            {"type": "function", "name": "exec_command", "parameters": {"type": "object", "properties": {}}},
            {"type": "namespace", "name": "agents", "description": "More.", "tools": [{"type": "function"}]},
            {"type": "web_search", "external_web_access": True},
        ],
        "client_metadata": {"turn": {"id": 1}},
    }
    answer = httpx.post(f"{server.url}/v1/responses", json=ask, timeout=60)
    assert answer.status_code == 200, answer.text
    told = answer.headers["x-stretto-warning"]
    assert "tools[1].type: namespace is left out" in told
    assert "tools[2].type: web_search is left out" in told
    assert [tool["name"] for tool in answer.json()["tools"]] == ["exec_command"]
