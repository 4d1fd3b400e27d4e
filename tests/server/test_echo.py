"""Log-probabilities of prompts: `echo` with `logprobs`, as lm-eval's local-completions asks for them."""

import json
from itertools import pairwise
from operator import itemgetter

import httpx
import numpy as np
import pytest

from serving import mock, serving

TABLE = np.random.default_rng(7).normal(size=(258, 258)).astype(np.float32)
ASKED = {"model": "mock", "max_tokens": 1, "temperature": 0, "echo": True, "logprobs": 1, "seed": 1234}


@pytest.fixture(scope="module")
def server():
    with serving(mock(lambda seen: TABLE[seen[-1]])) as running:
        yield running


@pytest.fixture(scope="module")
def web(server):
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


def complete(web, **fields):
    answer = web.post("/v1/completions", json={**ASKED, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def logs(token):
    row = TABLE[token].astype(np.float64)
    return row - np.log(np.exp(row).sum())


def expected(ids):
    return [float(logs(before)[token]) for before, token in pairwise(ids)]


def parse_logprobs(answer, ctxlens):
    """How lm-eval reads an answer: the prompt ends before the last token, the context before `ctxlen`."""
    found = []
    choices = sorted(answer["choices"], key=itemgetter("index"))
    for choice, ctxlen in zip(choices, ctxlens, strict=True):
        own = choice["logprobs"]["token_logprobs"][ctxlen:-1]
        tops = choice["logprobs"]["top_logprobs"][ctxlen:-1]
        greedy = all(mine == max(top.values()) for mine, top in zip(own, tops, strict=True))
        found.append((sum(own), greedy))
    return found


def test_lm_eval_scores_continuations_of_token_prompts(web):
    context = [65, 66, 67]
    best = [int(TABLE[67].argmax())]
    best.append(int(TABLE[best[0]].argmax()))
    prompts = [[*context, *best], [*context, 70, 71, 72]]
    found = parse_logprobs(complete(web, prompt=prompts), [3, 3])
    assert found[0] == (pytest.approx(sum(expected(prompts[0])[2:])), True)
    assert found[1] == (pytest.approx(sum(expected(prompts[1])[2:])), False)


def test_the_token_behind_the_prompt_is_there_even_if_it_ends_the_text():
    ends = mock(lambda seen: 257)  # the end token, always
    with serving(ends) as running, httpx.Client(base_url=running.url, timeout=60) as web:
        answer = complete(web, prompt=[[65, 66, 67]])
    assert len(answer["choices"][0]["logprobs"]["token_logprobs"]) == 4


def test_a_text_is_echoed_with_tokens_logprobs_and_offsets(web):
    answer = complete(web, prompt="héllo", logprobs=3)
    (choice,) = answer["choices"]
    ids = list("héllo".encode())
    logprobs = choice["logprobs"]
    assert choice["text"].startswith("héllo")
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["top_logprobs"][0] is None
    assert logprobs["token_logprobs"][1:6] == pytest.approx(expected(ids))
    best = [
        float(logs(token).max()) for token in ids
    ]  # texts of half characters are the same: the best stays
    assert [max(top.values()) for top in logprobs["top_logprobs"][1:]] == pytest.approx(best)
    assert logprobs["text_offset"] == [0, 1, 1, 2, 3, 4, 5]
    assert len({len(column) for column in logprobs.values()}) == 1
    usage = answer["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (6, 1)
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0


def test_without_new_tokens_the_prompt_is_the_answer(web):
    answer = complete(web, prompt=["AB", "C"], max_tokens=0, n=2)
    assert [choice["text"] for choice in answer["choices"]] == ["AB", "AB", "C", "C"]
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["length"] * 4
    assert answer["choices"][0]["logprobs"]["token_logprobs"] == [None, pytest.approx(expected([65, 66])[0])]
    assert answer["choices"][2]["logprobs"]["token_logprobs"] == [None]
    assert answer["usage"]["total_tokens"] == 3


def test_echo_without_logprobs_needs_no_pass(web, server):
    n_passes = len(server.llm().backend.batches)
    assert complete(web, prompt="AB", max_tokens=0, logprobs=None)["choices"][0]["logprobs"] is None
    assert len(server.llm().backend.batches) == n_passes


def test_a_scored_prompt_is_not_computed_twice(web, server):
    prompt = list(range(100, 140))
    n_passes = len(server.llm().backend.batches)
    complete(web, prompt=prompt)
    computed = [token for batch in server.llm().backend.batches[n_passes:] for token in batch]
    assert computed == prompt


def test_a_stream_begins_with_the_prompts_logprobs(web):
    text = web.post("/v1/completions", json={**ASKED, "prompt": "ABC", "stream": True}).text
    chunks = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    first = chunks[0]["choices"][0]
    assert first["text"] == "ABC"
    assert first["logprobs"]["token_logprobs"][1:] == pytest.approx(expected([65, 66, 67]))


def test_logprobs_0_has_those_of_the_tokens_alone(web):
    logprobs = complete(web, prompt="ABC", logprobs=0)["choices"][0]["logprobs"]
    assert [top and list(top) for top in logprobs["top_logprobs"][:3]] == [None, ["B"], ["C"]]
    assert logprobs["token_logprobs"][1:3] == pytest.approx(expected([65, 66, 67]))


def test_ids_are_told_beside_texts(web):
    choice = complete(web, prompt="ABC", return_token_ids=True)["choices"][0]
    assert choice["logprobs"]["token_ids"][:3] == [65, 66, 67]


def test_a_prompt_beyond_the_context_is_refused(web):
    answer = web.post("/v1/completions", json={**ASKED, "prompt": [65] * 2000})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prompt")
