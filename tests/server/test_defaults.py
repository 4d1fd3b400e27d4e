"""`stretto serve --default`: options of requests that do not set them."""

import pytest

from serving import endless, mock, visiting
from stretto import InvalidRequest
from stretto.server.settings import parse_arguments, parse_defaults
from stretto.testing import mock_llm
from stretto.text.template import ChatTemplate

OPTIONS = {"max_tokens": 3, "temperature": 0.25, "seed": 42, "overflow": "shift"}


@pytest.fixture(scope="module")
def web():
    with visiting(endless(0, cells=64), defaults=OPTIONS) as (_, client):
        yield client


def test_requests_that_say_nothing_get_the_defaults(web):
    chat = {"messages": [{"role": "user", "content": "a"}]}
    answer = web.post("/v1/chat/completions", json=chat).json()
    assert answer["usage"]["completion_tokens"] == 3
    answer = web.post("/v1/chat/completions", json={**chat, "max_tokens": 5}).json()
    assert answer["usage"]["completion_tokens"] == 5
    answer = web.post("/completion", json={"prompt": "a", "top_k": 7}).json()
    settings = answer["generation_settings"]
    assert (answer["tokens_predicted"], settings["n_predict"]) == (3, 3)
    assert (settings["seed"], settings["temperature"], settings["top_k"]) == (42, 0.25, 7)
    asked = {"model": "mock", "prompt": "a", "stream": False}
    assert web.post("/api/generate", json=asked).json()["eval_count"] == 3


def test_properties_have_the_defaults(web):
    params = web.get("/props").json()["default_generation_settings"]["params"]
    assert (params["seed"], params["temperature"], params["n_predict"]) == (42, 0.25, 3)


def test_a_full_context_is_shifted_where_the_operator_says_so(web):
    answer = web.post("/completion", json={"prompt": "a" * 50, "n_predict": 96}).json()
    assert (answer["tokens_predicted"], answer["truncated"]) == (96, True)
    assert web.post("/completion", json={"prompt": "a", "n_predict": 9}).json()["truncated"] is False


def test_defaults_are_checked():
    given = ["temperature=0.6", "top_k=20", "overflow=shift", "keep=4"]
    assert parse_defaults(given) == {"temperature": 0.6, "top_k": 20, "overflow": "shift", "keep": 4}
    for wrong in ("temperature", "hooks=x", "top_k=a", "top_p=2", "overflow=away", "keep=4"):
        with pytest.raises(InvalidRequest):
            parse_defaults([wrong])


def test_templates_get_the_operators_arguments():
    def opener(entry):
        llm = mock_llm("abc")
        text = "{{ messages[-1].content }}{% if style %}:{{ style }}{% endif %}"
        llm.template = ChatTemplate(text, llm.tokenizer.specials)
        return llm

    with visiting(opener, template_arguments={"style": "short", "unread": 1}) as (_, web):
        chat = {"messages": [{"role": "user", "content": "hi"}]}
        assert web.post("/apply-template", json=chat).json()["prompt"] == "hi:short"
        own = {**chat, "chat_template_kwargs": {"style": "long"}}
        assert web.post("/apply-template", json=own).json()["prompt"] == "hi:long"
        prompt = web.post("/api/chat", json={**chat, "model": "mock", "stream": False}).json()
        assert prompt["prompt_eval_count"] == len("hi:short")


def test_arguments_of_templates_are_an_object():
    assert parse_arguments(None) == {}
    assert parse_arguments('{"enable_thinking": false}') == {"enable_thinking": False}
    for wrong in ("[]", "enable_thinking=false", "1", "[" * 10_000):
        with pytest.raises(InvalidRequest, match="object in JSON"):
            parse_arguments(wrong)


def test_drafts_by_default_are_counted():
    with visiting(mock("abcabcabcabc"), defaults={"draft": "lookup"}) as (_, web):
        asked = {"model": "mock", "prompt": "abcabcabc", "temperature": 0, "max_tokens": 11}
        details = web.post("/v1/completions", json=asked).json()["usage"]["completion_tokens_details"]
        assert details["accepted_prediction_tokens"] > 0
        assert details["rejected_prediction_tokens"] >= 0
        drafted = sum(n for name, n in details.items() if name.endswith("prediction_tokens"))
        assert f'stretto_drafted_tokens_total{{model="mock"}} {drafted}' in web.get("/metrics").text
