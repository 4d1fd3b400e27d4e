"""The repeat guard of the server: on by default, each API's words for the end, and how to turn it off."""

import json

import httpx
import pytest

from serving import mock, serving
from stretto.cli import main
from stretto.text.stops import MIN_TOKENS

LOOP = mock(lambda seen: ord("abc"[len(seen) % 3]))
MESSAGES = [{"role": "user", "content": "Hi"}]
ENDS = {"ended_by": "repetition"}


@pytest.fixture(scope="module")
def web():
    with serving(LOOP) as server, httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


def asked(web, path, **body):
    answer = web.post(path, json={"model": "mock", **body})
    assert answer.status_code == 200, answer.text
    return answer


def events(answer):
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_openai_says_length_and_our_field_why(web, path):
    body = {"temperature": 0, "max_tokens": 600}
    body |= {"prompt": "Hi"} if path == "/v1/completions" else {"messages": MESSAGES}
    document = asked(web, path, **body).json()
    (choice,) = document["choices"]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("length", "repetition")
    assert document["usage"]["completion_tokens"] == MIN_TOKENS
    last = [event for event in events(asked(web, path, stream=True, **body)) if event["choices"]][-1]
    ended = last["choices"][0]
    assert (ended["finish_reason"], ended["stop_reason"]) == ("length", "repetition")
    off = asked(web, path, repeat_guard=False, **body).json()
    assert off["usage"]["completion_tokens"] == 600
    assert off["choices"][0]["stop_reason"] is None


def test_several_texts_and_the_best_of_them(web):
    several = asked(web, "/v1/completions", prompt=["Hi", "Ho"], n=2, max_tokens=600, temperature=0).json()
    assert [choice["stop_reason"] for choice in several["choices"]] == ["repetition"] * 4
    best = asked(web, "/v1/completions", prompt="Hi", best_of=2, max_tokens=600, temperature=0).json()
    assert best["choices"][0]["stop_reason"] == "repetition"


def test_ignore_eos_goes_on(web):
    document = asked(web, "/v1/completions", prompt="Hi", ignore_eos=True, max_tokens=600).json()
    assert document["usage"]["completion_tokens"] == 600


def test_anthropic_says_max_tokens(web):
    body = {"messages": MESSAGES, "max_tokens": 600, "temperature": 0}
    document = asked(web, "/v1/messages", **body).json()
    assert document["stop_reason"] == "max_tokens"
    assert document.items() >= ENDS.items()
    (delta,) = [
        event["delta"]
        for event in events(asked(web, "/v1/messages", stream=True, **body))
        if event["type"] == "message_delta"
    ]
    assert delta == {"stop_reason": "max_tokens", "stop_sequence": None, **ENDS}
    off = asked(web, "/v1/messages", repeat_guard=False, **body).json()
    assert "ended_by" not in off
    assert off["usage"]["output_tokens"] == 600


def test_responses_are_incomplete(web):
    body = {"input": "Hi", "max_output_tokens": 600, "temperature": 0}
    document = asked(web, "/v1/responses", **body).json()
    assert document["status"] == "incomplete"
    assert document["incomplete_details"] == {"reason": "max_output_tokens", **ENDS}
    last = events(asked(web, "/v1/responses", stream=True, **body))[-1]
    assert last["response"]["incomplete_details"] == {"reason": "max_output_tokens", **ENDS}
    off = asked(web, "/v1/responses", repeat_guard=False, **body).json()
    assert off["incomplete_details"] == {"reason": "max_output_tokens"}


@pytest.mark.parametrize("path", ["/api/generate", "/api/chat"])
def test_ollama_says_length(web, path):
    body = {"prompt": "Hi"} if path == "/api/generate" else {"messages": MESSAGES}
    options = {"num_predict": 600, "temperature": 0}
    document = asked(web, path, stream=False, options=options, **body).json()
    assert (document["done_reason"], document["eval_count"]) == ("length", MIN_TOKENS)
    assert document.items() >= ENDS.items()
    last = json.loads(asked(web, path, options=options, **body).text.splitlines()[-1])
    assert (last["done_reason"], last["ended_by"]) == ("length", "repetition")
    off = asked(web, path, stream=False, options={**options, "repeat_guard": False}, **body).json()
    assert off["eval_count"] == 600
    assert "ended_by" not in off


def test_llama_server_says_limit(web):
    body = {"prompt": "Hi", "n_predict": 600, "temperature": 0}
    document = asked(web, "/completion", **body).json()
    assert (document["stop_type"], document["truncated"]) == ("limit", False)
    assert document["tokens_predicted"] == MIN_TOKENS
    assert document.items() >= ENDS.items()
    last = events(asked(web, "/completion", stream=True, **body))[-1]
    assert (last["stop_type"], last["ended_by"]) == ("limit", "repetition")
    off = asked(web, "/completion", repeat_guard=False, **body).json()
    assert off["tokens_predicted"] == 600
    assert "ended_by" not in off


def test_the_operator_turns_it_off_and_a_request_on():
    with serving(LOOP, repeat_guard=False) as server, httpx.Client(base_url=server.url, timeout=60) as web:
        body = {"prompt": "Hi", "max_tokens": 600, "temperature": 0}
        assert asked(web, "/v1/completions", **body).json()["usage"]["completion_tokens"] == 600
        guarded = asked(web, "/v1/completions", repeat_guard=True, **body).json()
        assert guarded["usage"]["completion_tokens"] == MIN_TOKENS


@pytest.mark.parametrize(("flag", "expected"), [((), True), (("--no-repeat-guard",), False)])
def test_the_flag_of_serve(monkeypatch, flag, expected):
    taken = []
    monkeypatch.setattr("stretto.server.serve.serve", lambda settings, *_: taken.append(settings))
    monkeypatch.setattr("stretto.cli.servers.pull_missing", lambda source: None)
    with pytest.raises(SystemExit):
        main(["serve", "mock.gguf", *flag])
    assert [settings.repeat_guard for settings in taken] == [expected]
