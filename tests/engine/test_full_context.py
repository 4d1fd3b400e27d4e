"""A text that the end of the context cuts says so, and not that max_tokens did."""

import pytest

from serving import visiting
from stretto.testing import mock_llm

ENDLESS = lambda seen: 97 + len(seen) % 26  # noqa: E731
SHORT = {"max_tokens": 5}
LONG = {"max_tokens": 500}


def model(entry=None):
    return mock_llm(ENDLESS, context_length=64, cells=256)


@pytest.mark.parametrize("options", [{}, {"temperature": 0}, {"n": 2}, {"beams": 2}, {"best_of": 2, "n": 1}])
def test_results_say_which_limit_it_was(options):
    with model() as llm:
        for limits, why in ((SHORT, None), (LONG, "context"), ({}, "context")):
            found = llm.generate("abc", **options, **limits)
            for result in found if isinstance(found, list) else [found]:
                assert (result.finish_reason, result.stop_reason) == ("length", why)


def test_streams_and_runs_say_it_too():
    with model() as llm:
        stream = llm.stream("abc")
        assert [token.finish_reason for token in stream][-1] == "length"
        assert stream.result.stop_reason == "context"
        run = llm.parallel("abc", threshold=0.9)
        assert (run.finish_reason, run.stop_reason) == ("length", "context")
        assert llm.parallel("abc", threshold=0.9, max_tokens=3).stop_reason is None
        with llm.sequence("abc") as sequence:
            assert llm.generate(sequence).stop_reason == "context"


def test_a_context_that_shifts_is_never_full():
    with model() as llm:
        result = llm.generate("abc", overflow="shift", max_tokens=100)
        assert (len(result.tokens), result.stop_reason) == (100, None)


CHAT = {"messages": [{"role": "user", "content": "abc"}]}
FIELDS = {  # path: body, its limit, the end of an answer, how a limit and a full context are told
    "/v1/completions": ({"prompt": "abc"}, "max_tokens", lambda a: a["choices"][0]["stop_reason"], "context"),
    "/v1/chat/completions": (CHAT, "max_tokens", lambda a: a["choices"][0]["stop_reason"], "context"),
    "/v1/responses": (
        {"input": "abc"},
        "max_output_tokens",
        lambda a: a["incomplete_details"].get("ended_by"),
        "context",
    ),
    "/v1/messages": (
        CHAT,
        "max_tokens",
        lambda a: None if a["stop_reason"] == "max_tokens" else a["stop_reason"],
        "model_context_window_exceeded",
    ),
    "/api/chat": ({**CHAT, "stream": False}, "num_predict", lambda a: a.get("ended_by"), "context"),
    "/completion": ({"prompt": "abc"}, "n_predict", lambda a: a.get("ended_by"), "context"),
}


@pytest.mark.parametrize("path", FIELDS)
def test_every_protocol_tells_them_apart(path):
    body, name, read, wanted = FIELDS[path]
    with visiting(model) as (_, web):
        for n, why in ((5, None), (500, wanted)):
            limit = {"options": {name: n}} if name == "num_predict" else {name: n}
            answer = web.post(path, json={"model": "mock", **body, **limit})
            assert answer.status_code == 200, answer.text
            assert read(answer.json()) == why
            assert answer.json().get("truncated", n == 500) == (n == 500)  # llama-server's
