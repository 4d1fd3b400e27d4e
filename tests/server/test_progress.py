"""`return_progress`: events of a stream that say how much of its prompt has been computed."""

import json

import pytest

from serving import mock, visiting
from stretto.engine.limits import Limits

LONG = "abcdefgh" * 20


def events(response):
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    return [json.loads(line) for line in lines if line != "[DONE]"]


@pytest.fixture(scope="module")
def web():
    """A server that computes 64 tokens a step."""
    with visiting(mock("yes", limits=Limits(max_tokens_per_step=64), context_length=512)) as (_, client):
        yield client


@pytest.mark.parametrize("path", ["/completion", "/v1/completions", "/v1/chat/completions"])
def test_the_steps_of_a_prompt_are_events(web, path):
    text = f"{chr(60 + len(path))} {LONG}"
    asked = {"prompt": text} if "chat" not in path else {"messages": [{"role": "user", "content": text}]}
    asked |= {"stream": True, "temperature": 0, "timings_per_token": True}
    told = [one for one in events(web.post(path, json={**asked, "return_progress": True})) if one]
    steps = [one["prompt_progress"] for one in told if "prompt_progress" in one]
    assert steps[0] == {"total": steps[0]["total"], "cache": 0, "processed": 0, "time_ms": 0}
    done = [one["processed"] for one in steps]
    total = steps[0]["total"]
    assert done == [0, *range(64, total, 64), total]
    assert "prompt_progress" in told[0]
    assert "prompt_progress" not in told[-1]
    first = next(one["timings"] for one in told if "prompt_progress" in one)
    assert (first["prompt_n"], first["prompt_ms"], first["predicted_n"]) == (0, 0.0, 0)
    again = events(web.post(path, json={**asked, "return_progress": True}))
    steps = [one["prompt_progress"] for one in again if "prompt_progress" in one]
    assert 0 < steps[0]["cache"] == steps[0]["processed"] < steps[-1]["processed"] == steps[-1]["total"]
    plain = events(web.post(path, json=asked))
    assert not any("prompt_progress" in one for one in plain)


def test_texts_are_the_same_with_and_without(web):
    asked = {"prompt": f"same {LONG}", "stream": True, "temperature": 0}
    texts = []
    for more in ({}, {"return_progress": True}):
        told = events(web.post("/completion", json={**asked, **more}))
        texts.append("".join(one["content"] for one in told))
    assert texts == ["yes", "yes"]


def test_the_time_of_a_prompt_in_one_step_is_that_of_the_step():
    asked = {"prompt": "short", "stream": True, "return_progress": True, "timings_per_token": True}
    with visiting(mock("yes", seconds=0.02)) as (_, web):
        told = events(web.post("/completion", json=asked))
    first, last = (one["timings"] for one in told if "prompt_progress" in one)
    assert first["prompt_ms"] == 0
    assert last["prompt_ms"] >= 20
    assert last["prompt_per_second"] == 1000 * last["prompt_n"] / last["prompt_ms"]


def test_each_prompt_has_its_own(web):
    asked = {"prompt": [f"one {LONG}", "two"], "n": 2, "stream": True, "return_progress": True}
    told = events(web.post("/v1/completions", json={**asked, "temperature": 0}))
    found = {one["choices"][0]["index"] for one in told if "prompt_progress" in one}
    assert found == {0, 2}


def test_an_answer_has_its_prompt_if_it_is_verbose(web):
    asked = {"messages": [{"role": "user", "content": "What is it?"}], "temperature": 0}
    assert "__verbose" not in web.post("/v1/chat/completions", json={**asked, "verbose": False}).json()
    answer = web.post("/v1/chat/completions", json={**asked, "verbose": True}).json()
    assert "What is it?" in answer["__verbose"]["prompt"]
    told = events(web.post("/v1/chat/completions", json={**asked, "verbose": True, "stream": True}))
    assert told[-1]["__verbose"] == answer["__verbose"]


def test_responses_say_how_far_they_are(web):
    asked = {"input": f"far {LONG}", "stream": True, "temperature": 0}
    more = {"return_progress": True, "timings_per_token": True}
    answer = web.post("/v1/responses", json={**asked, **more}).text
    told = [json.loads(line[6:]) for line in answer.splitlines() if line.startswith("data: {")]
    steps = [one for one in told if "prompt_progress" in one]
    assert {one["type"] for one in steps} == {"response.in_progress"}
    first, total = steps[0]["prompt_progress"]["cache"], steps[0]["prompt_progress"]["total"]
    done = [one["prompt_progress"]["processed"] for one in steps]
    assert done == [first, *range(first + 64, total, 64), total]
    deltas = [one["timings"] for one in told if one["type"] == "response.output_text.delta"]
    assert [one["predicted_n"] for one in deltas] == sorted(one["predicted_n"] for one in deltas)
    assert deltas[0]["prompt_n"] == told[-1]["timings"]["prompt_n"] == total - first
    assert [one["sequence_number"] for one in told] == list(range(len(told)))
    assert "prompt_progress" not in web.post("/v1/responses", json=asked).text
