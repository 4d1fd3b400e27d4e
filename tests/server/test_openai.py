"""OpenAI's endpoints, by hand: what is answered to the last field."""

import json

import pytest

from serving import HELLO, mock, visiting

CHAT = {"model": "mock", "messages": [{"role": "user", "content": "Hi"}], "temperature": 0}
TEXT = {"model": "mock", "prompt": "Say it: ", "temperature": 0, "max_tokens": 100}


def events(text):
    """The JSON of server-sent events; the last one has to be [DONE]."""
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_a_chat_is_answered(web):
    answer = web.post("/v1/chat/completions", json=CHAT)
    assert answer.status_code == 200
    assert answer.headers["x-request-id"].startswith("req-")
    assert answer.headers["server-timing"].startswith("app;dur=")
    body = answer.json()
    assert body["object"] == "chat.completion"
    assert body["choices"][0]["message"] == {"role": "assistant", "content": HELLO, "refusal": None}
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["completion_tokens"] == len(HELLO)
    assert body["usage"]["total_tokens"] == body["usage"]["prompt_tokens"] + len(HELLO)
    assert {"load", "first_token", "decode", "total", "tokens_per_second"} <= set(body["timings"])
    assert body["timings"]["predicted_n"] == body["usage"]["completion_tokens"]
    assert body["timings"]["total"] > 0


def test_a_stream_says_the_same(web):
    asked = {**CHAT, "stream": True, "stream_options": {"include_usage": True}}
    answer = web.post("/v1/chat/completions", json=asked)
    assert answer.headers["content-type"].startswith("text/event-stream")
    found = events(answer.text)
    assert found[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    said = [chunk["choices"][0]["delta"].get("content", "") for chunk in found if chunk["choices"]]
    assert "".join(said) == HELLO
    assert [c["choices"][0]["finish_reason"] for c in found if c["choices"]][-1] == "stop"
    assert all(chunk["usage"] is None for chunk in found[:-1])
    assert found[-1]["choices"] == []
    assert found[-1]["usage"]["completion_tokens"] == len(HELLO)
    assert found[-1]["timings"]["total"] > 0
    assert len({chunk["id"] for chunk in found}) == 1


def test_a_stream_without_usage_has_its_timings_at_the_end(web):
    found = events(web.post("/v1/chat/completions", json={**CHAT, "stream": True}).text)
    assert "usage" not in found[-1]
    assert found[-1]["choices"][0]["finish_reason"] == "stop"
    assert found[-1]["timings"]["total"] > 0


def test_several_texts_of_several_prompts(web):
    asked = {**TEXT, "prompt": ["a", "b"], "n": 2, "max_tokens": 5}
    body = web.post("/v1/completions", json=asked).json()
    assert [(choice["index"], choice["text"]) for choice in body["choices"]] == [
        (i, "Hello") for i in range(4)
    ]
    assert body["usage"] == {
        "prompt_tokens": 2,
        "completion_tokens": 20,
        "total_tokens": 22,
        "prompt_tokens_details": {"cached_tokens": body["usage"]["prompt_tokens_details"]["cached_tokens"]},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
    texts = {}
    for chunk in events(web.post("/v1/completions", json={**asked, "stream": True}).text):
        (choice,) = chunk["choices"]
        texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
    assert texts == dict.fromkeys(range(4), "Hello")


def test_a_prompt_may_be_tokens_and_be_echoed(web):
    asked = {**TEXT, "prompt": [65, 66], "echo": True, "max_tokens": 5}
    assert web.post("/v1/completions", json=asked).json()["choices"][0]["text"] == "ABHello"
    found = events(web.post("/v1/completions", json={**asked, "stream": True}).text)
    assert "".join(chunk["choices"][0]["text"] for chunk in found) == "ABHello"


def test_completions_end_after_16_tokens_unless_told_otherwise(web):
    body = web.post("/v1/completions", json={k: v for k, v in TEXT.items() if k != "max_tokens"}).json()
    assert body["choices"][0]["text"] == HELLO[:16]
    assert body["choices"][0]["finish_reason"] == "length"


def test_stop_strings_are_told(web):
    choice = web.post("/v1/chat/completions", json={**CHAT, "stop": ["world", "x"]}).json()["choices"][0]
    assert choice["message"]["content"] == "Hello "
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "world")


def test_logit_bias_reaches_the_sampler(web):
    bias = {str(ord("J")): 100}
    choice = web.post("/v1/chat/completions", json={**CHAT, "logit_bias": bias, "max_tokens": 3}).json()[
        "choices"
    ]
    assert choice[0]["message"]["content"] == "JJJ"


def test_a_seed_gives_the_same_text_again(web):
    asked = {**TEXT, "temperature": 50, "top_k": 0, "top_p": 1, "min_p": 0, "seed": -5, "max_tokens": 30}
    first, second, other = (
        web.post("/v1/completions", json={**asked, "seed": seed}).json()["choices"][0]["text"]
        for seed in (-5, -5, 6)
    )
    assert first == second != other


def test_log_probabilities_of_a_chat(web):
    asked = {**CHAT, "logprobs": True, "top_logprobs": 2, "max_tokens": 2}
    content = web.post("/v1/chat/completions", json=asked).json()["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in content] == ["H", "e"]
    assert content[0]["bytes"] == [72]
    assert len(content[0]["top_logprobs"]) == 2
    assert content[0]["top_logprobs"][0]["logprob"] == pytest.approx(0, abs=1e-3)
    streamed = events(web.post("/v1/chat/completions", json={**asked, "stream": True}).text)
    told = [c["choices"][0]["logprobs"]["content"][0] for c in streamed if c["choices"][0]["logprobs"]]
    assert told == content
    none = web.post("/v1/chat/completions", json={**asked, "top_logprobs": 0}).json()
    assert none["choices"][0]["logprobs"]["content"][0]["top_logprobs"] == []


def test_log_probabilities_of_a_completion(web):
    logprobs = web.post("/v1/completions", json={**TEXT, "logprobs": 1, "max_tokens": 2}).json()["choices"][
        0
    ]["logprobs"]
    assert logprobs["tokens"] == ["H", "e"]
    assert list(logprobs["top_logprobs"][1]) == ["e"]
    assert logprobs["text_offset"] == [0, 1]


def test_the_best_of_several(web):
    body = web.post("/v1/completions", json={**TEXT, "best_of": 3, "n": 1}).json()
    assert [choice["text"] for choice in body["choices"]] == [HELLO]


def test_models_are_listed(web):
    assert [model["id"] for model in web.get("/v1/models").json()["data"]] == ["mock"]
    (shown,) = web.get("/models").json()["models"]  # as llama-server's clients read them
    assert shown["name"] == shown["model"] == "mock"
    assert {"completion", "embedding"} <= set(shown["capabilities"])
    assert "multimodal" not in shown["capabilities"]
    assert web.get("/v1/models/mock").json()["object"] == "model"
    missing = web.get("/v1/models/gpt-4")
    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "model_not_found"


def test_a_message_may_have_several_texts_and_be_of_a_developer(web):
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    asked = {
        **CHAT,
        "messages": [{"role": "developer", "content": "Be brief"}, {"role": "user", "content": parts}],
    }
    plain = {
        **CHAT,
        "messages": [{"role": "system", "content": "Be brief"}, {"role": "user", "content": "a\nb"}],
    }
    counts = [
        web.post("/v1/chat/completions", json=body).json()["usage"]["prompt_tokens"]
        for body in (asked, plain)
    ]
    assert counts[0] == counts[1]


def test_what_one_prompt_computed_the_next_finds(web):
    asked = {**TEXT, "prompt": "A prompt of some length to be found again", "max_tokens": 1}
    counts = [web.post("/v1/completions", json=asked).json()["usage"] for _ in range(2)]
    assert counts[1]["prompt_tokens_details"]["cached_tokens"] >= counts[1]["prompt_tokens"] - 1


def test_a_prompt_can_be_pinned_and_released(web, server):
    asked = {**TEXT, "prompt": "To be pinned", "cache_pin": "greeting", "max_tokens": 2}
    for stream in (False, True):
        assert web.post("/v1/completions", json={**asked, "stream": stream}).status_code == 200
        listed = web.get("/stretto/pins?model=mock").json()["pins"]
        assert listed == [{"name": "greeting", "tokens": len("To be pinned")}]
    server.llm().cache.clear()
    assert server.llm().cache.stats().pinned == 1
    assert web.delete("/stretto/pins/greeting?model=mock").status_code == 200
    assert server.llm().cache.stats().pinned == 0
    assert web.delete("/stretto/pins/greeting?model=mock").status_code == 404
    long = web.post("/v1/completions", json={**asked, "prompt": "x" * 600})
    assert long.status_code == 400
    assert "600 tokens, and of 1,024 cells 512" in long.json()["error"]["message"]


def test_a_token_without_text_has_a_chunk_too():
    """Half a character: a client sees each token when it is made."""
    with visiting(mock("aéb")) as (_, web):
        found = events(web.post("/v1/completions", json={**TEXT, "stream": True}).text)
        texts = [chunk["choices"][0]["text"] for chunk in found if chunk["choices"]]
        assert texts == ["a", "", "é", "b", ""]  # the last one has the finish reason
        found = events(web.post("/v1/chat/completions", json={**CHAT, "stream": True}).text)
        texts = [chunk["choices"][0]["delta"].get("content") for chunk in found if chunk["choices"]]
        assert texts == ["", "a", "", "é", "b", None]
