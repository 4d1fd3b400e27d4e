"""`/v1/messages` with Anthropic's own package: whole and streamed, tools, thinking, images, errors."""

import base64
import io
import json
from contextlib import contextmanager

import anthropic
import httpx
import pytest
from PIL import Image

import thinking
import tool_models
from serving import HELLO, mock, serving

ASKED = {"model": "mock", "max_tokens": 300, "messages": [{"role": "user", "content": "Hi"}]}
SCHEMA = {
    "type": "object",
    "properties": {"town": {"type": "string", "maxLength": 9}},
    "required": ["town"],
    "additionalProperties": False,
}
TOOLS = [
    {"name": "weather", "description": "x", "input_schema": SCHEMA},
    {"name": "now", "input_schema": {"type": "object", "properties": {}}},
]
COLD = {**ASKED, "tools": TOOLS, "messages": [{"role": "user", "content": "Is it cold in Oslo?"}]}


@contextmanager
def client_of(server, key="none", **more):
    with anthropic.Anthropic(base_url=server.url, api_key=key, max_retries=0, **more) as client:
        yield client


@pytest.fixture(scope="module")
def client(server):
    with client_of(server) as made:
        yield made


@pytest.fixture(scope="module")
def caller():
    with serving(lambda entry: tool_models.make("chatml-tools")) as server, client_of(server) as made:
        yield made


def test_a_message_has_blocks_a_reason_and_usage(client):
    message = client.messages.create(**ASKED, system="Be brief.", extra_body={"temperature": 0})
    (block,) = message.content
    assert (message.type, message.role, message.model) == ("message", "assistant", "mock")
    assert (block.type, block.text) == ("text", HELLO)
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    assert message.usage.output_tokens == len(HELLO)
    again = client.messages.create(**ASKED, system="Be brief.", extra_body={"temperature": 0})
    both = (message.usage.input_tokens, again.usage.input_tokens + again.usage.cache_read_input_tokens)
    assert both[0] + message.usage.cache_read_input_tokens == both[1]
    assert again.usage.cache_read_input_tokens == both[1] - 1


def test_a_stream_has_the_events_that_the_package_adds_up(client):
    with client.messages.stream(**ASKED) as stream:
        events = list(stream)
        final = stream.get_final_message()
    kinds = [event.type for event in events if event.type != "text"]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert events[0].message.usage.input_tokens + events[0].message.usage.cache_read_input_tokens > 0
    assert final.content[0].text == HELLO
    assert (final.stop_reason, final.usage.output_tokens) == ("end_turn", len(HELLO))


def test_raw_events_have_names_and_a_ping(server):
    with httpx.Client(base_url=server.url) as web:
        text = web.post("/v1/messages", json={**ASKED, "stream": True}).text
    events = [block.split("\n") for block in text.strip().split("\n\n")]
    named = [(first.removeprefix("event: "), json.loads(data[6:])["type"]) for first, data in events]
    assert all(name == kind for name, kind in named)
    assert ("ping", "ping") in named


def test_stop_sequences_and_the_limit_are_told_apart(client):
    stopped = client.messages.create(**ASKED, stop_sequences=["world"])
    assert (stopped.content[0].text, stopped.stop_reason) == ("Hello ", "stop_sequence")
    assert stopped.stop_sequence == "world"
    short = client.messages.create(**{**ASKED, "max_tokens": 3})
    assert (short.content[0].text, short.stop_reason) == ("Hel", "max_tokens")


def test_calls_are_blocks_whole_and_streamed(caller):
    whole = caller.messages.create(**COLD)
    with caller.messages.stream(**COLD) as stream:
        streamed = stream.get_final_message()
    for message in (whole, streamed):
        text, weather, now = message.content
        assert text.text.strip() == "Let me < see."
        assert (weather.type, weather.name, weather.input) == ("tool_use", "weather", {"town": "Oslo"})
        assert (now.name, now.input) == ("now", {})
        assert message.stop_reason == "tool_use"
        assert weather.id != now.id


def test_results_of_calls_go_back(caller):
    first = caller.messages.create(**COLD)
    results = [
        {"type": "tool_result", "tool_use_id": first.content[1].id, "content": "-3 degrees"},
        {
            "type": "tool_result",
            "tool_use_id": first.content[2].id,
            "content": [{"type": "text", "text": "no clock"}],
            "is_error": True,
        },
        {"type": "text", "text": "Well?"},
    ]
    talk = [*COLD["messages"], first.to_param(), {"role": "user", "content": results}]
    more = caller.messages.count_tokens(model="mock", messages=talk, tools=TOOLS).input_tokens
    less = caller.messages.count_tokens(model="mock", messages=talk[:2], tools=TOOLS).input_tokens
    assert more > less + len("-3 degreesError: no clockWell?")
    assert caller.messages.create(**{**COLD, "messages": talk}).content


def test_the_packages_own_loop_learns_that_no_conversation_is_kept(caller):
    called = []

    @anthropic.beta_tool
    def weather(town: str) -> str:
        """How cold it is."""
        called.append(town)
        return "-3 degrees"

    @anthropic.beta_tool
    def now() -> str:
        """The time."""
        return "noon"

    asked = {name: value for name, value in COLD.items() if name != "tools"}
    runner = caller.beta.messages.tool_runner(**asked, tools=[weather, now], max_iterations=3)
    assert len(list(runner)) == 3
    assert called[:2] == ["Oslo", "Oslo"]
    with pytest.raises(anthropic.BadRequestError, match="no conversation is kept here") as caught:
        caller.beta.messages.create(**ASKED, thread={"type": "create"})
    assert caught.value.body["error"]["details"]["error_code"] == "thread_unsupported_request"


def test_a_tool_is_called_where_one_has_to_be():
    with serving(lambda entry: tool_models.make("chatml-tools", None)) as server, client_of(server) as client:
        for choice in ({"type": "any"}, {"type": "tool", "name": "weather"}):
            tools = TOOLS[:1]
            message = client.messages.create(
                **{**COLD, "tools": tools, "max_tokens": 2000}, tool_choice=choice
            )
            assert message.content[0].name == "weather"
            assert len(message.content[0].input["town"]) <= 9


def test_tools_may_be_forbidden(caller):
    message = caller.messages.create(**COLD, tool_choice={"type": "none"})
    assert [block.type for block in message.content] == ["text"]


@pytest.mark.parametrize("display", ["summarized", "omitted"])
def test_thinking_is_a_block_of_its_own(display):
    kind = thinking.KINDS["qwen3"]
    asked = {**ASKED, "thinking": {"type": "enabled", "budget_tokens": 1024, "display": display}}
    with serving(lambda entry: thinking.make("qwen3")) as server, client_of(server) as client:
        whole = client.messages.create(**asked)
        with client.messages.stream(**asked) as stream:
            streamed = stream.get_final_message()
        talk = [*ASKED["messages"], whole.to_param(), {"role": "user", "content": "And?"}]
        assert client.messages.create(**{**asked, "messages": talk}).content
    for message in (whole, streamed):
        thoughts, text = message.content
        assert (thoughts.type, text.type, text.text) == ("thinking", "text", kind.text)
        assert thoughts.thinking == (kind.reasoning if display == "summarized" else "")
        assert thoughts.signature
        assert 0 < message.usage.output_tokens_details.thinking_tokens < message.usage.output_tokens


def test_thinking_is_turned_off_and_efforts_are_hints():
    with serving(lambda entry: thinking.make("qwen3", "Yes.")) as server, client_of(server) as client:

        def count(**more):
            return client.messages.count_tokens(model="mock", messages=ASKED["messages"], **more).input_tokens

        plain = count()
        assert count(thinking={"type": "disabled"}) > plain  # an empty block of reasoning
        assert count(thinking={"type": "adaptive"}, output_config={"effort": "high"}) == plain
    with serving(strict=True) as server, client_of(server) as client:
        with pytest.raises(anthropic.BadRequestError, match="does not think"):
            client.messages.create(**ASKED, thinking={"type": "enabled", "budget_tokens": 1024})
        assert client.messages.create(**ASKED, thinking={"type": "disabled"}).content


def test_a_schema_is_kept_to():
    noise = mock(lambda seen: [(7 * t + len(seen)) % 13 for t in range(258)])
    with serving(noise) as server, client_of(server) as client:
        shape = {"format": {"type": "json_schema", "schema": SCHEMA}}
        message = client.messages.create(**ASKED, output_config=shape)
        assert json.loads(message.content[0].text).keys() == {"town"}


def test_the_assistants_last_message_is_continued(server, client):
    talk = [*ASKED["messages"], {"role": "assistant", "content": "Hello wor"}]
    message = client.messages.create(**{**ASKED, "messages": talk})
    assert message.content[0].text == "ld, this is a mock."


def test_labels_and_hints_change_nothing(client):
    more = {"metadata": {"user_id": "me"}, "service_tier": "auto", "cache_control": {"type": "ephemeral"}}
    system = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral", "ttl": "1h"}}]
    keep = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
    message = client.messages.create(
        **ASKED, **more, system=system, extra_body={"context_management": keep, "top_k": 1, "top_p": 0.5}
    )
    assert message.content[0].text == HELLO


def test_a_document_of_text_is_text(client):
    source = {"type": "text", "media_type": "text/plain", "data": "It rains."}
    document = {"type": "document", "source": source, "title": "News"}

    def count(content):
        return client.messages.count_tokens(model="mock", messages=[{"role": "user", "content": content}])

    assert count([document]) == count("News\nIt rains.")


def test_an_image_needs_a_model_that_sees(client):
    data = io.BytesIO()
    Image.new("RGB", (4, 4)).save(data, "png")
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(data.getvalue()).decode()}
    content = [{"type": "image", "source": source}, {"type": "text", "text": "What is it?"}]
    with pytest.raises(anthropic.BadRequestError, match="--vision"):
        client.messages.create(**{**ASKED, "messages": [{"role": "user", "content": content}]})


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"max_tokens": -1}, "max_tokens"),
        ({"model": 3}, "model"),
        ({"messages": []}, "messages"),
        ({"bogus": 1}, "bogus"),
        (
            {"tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": 2}]},
            r"tools\[0\].type",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "thinking", "thinking": "x"}]}]}, "content"),
        ({"messages": [{"role": "assistant", "content": [{"type": "image"}]}]}, "content"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": {"type": 3}}}},
            "output_config.format",
        ),
    ],
)
def test_what_is_wrong_is_named_in_anthropics_form(client, wrong, says):
    with pytest.raises(anthropic.BadRequestError, match=says) as caught:
        client.post("/v1/messages", body={**ASKED, **wrong}, cast_to=object)
    assert caught.value.body["type"] == "error"
    assert caught.value.body["error"]["type"] == "invalid_request_error"


def test_a_key_comes_by_either_header():
    with serving(api_keys=("right",)) as server:
        with client_of(server, "right") as client:
            assert client.messages.create(**ASKED).content
            assert client.models.list().data[0].id == "mock"
        with anthropic.Anthropic(base_url=server.url, auth_token="right", max_retries=0) as client:
            assert client.messages.create(**ASKED).content
        with client_of(server, "wrong") as client, pytest.raises(anthropic.AuthenticationError) as caught:
            client.messages.create(**ASKED)
        assert caught.value.body["error"]["type"] == "authentication_error"


def test_a_model_that_is_not_there(client):
    with pytest.raises(anthropic.NotFoundError) as caught:
        client.messages.create(**{**ASKED, "model": "claude"})
    assert caught.value.body["error"]["type"] == "not_found_error"
    assert client.models.retrieve("mock").display_name == "mock"


def test_the_model_may_be_left_out(web):
    asked = {"messages": [{"role": "user", "content": "Hi"}]}
    assert web.post("/v1/messages/count_tokens", json=asked).json()["input_tokens"] > 0
    assert web.post("/v1/messages", json={**asked, "max_tokens": 4}).json()["model"] == "mock"
