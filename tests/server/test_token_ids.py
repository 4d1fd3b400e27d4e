"""`return_token_ids`: ids beside texts, which several tokens may share."""

import json

import pytest

import vocabularies
from serving import HELLO
from stretto.text.spm import SPMTokenizer

CHAT = {"model": "mock", "messages": [{"role": "user", "content": "Hi"}], "temperature": 0}
TEXT = {"model": "mock", "prompt": "Say it: ", "temperature": 0, "max_tokens": 100}
PATHS = [("/v1/chat/completions", CHAT), ("/v1/completions", TEXT)]
IDS = list(HELLO.encode())


def events(text):
    return [json.loads(line.removeprefix("data: ")) for line in text.split("\n\n")[:-2]]


@pytest.mark.parametrize(("path", "asked"), PATHS)
def test_an_answer_has_the_ids_of_prompt_and_text(web, path, asked):
    choice = web.post(path, json={**asked, "return_token_ids": True}).json()["choices"][0]
    assert choice["token_ids"] == IDS
    assert choice["prompt_token_ids"]
    if path == "/v1/completions":
        assert choice["prompt_token_ids"] == list(b"Say it: ")
        again = web.post(path, json={**asked, "prompt": choice["prompt_token_ids"]}).json()
        assert again["choices"][0]["text"] == choice["text"]
    plain = web.post(path, json=asked).json()["choices"][0]
    assert not {"token_ids", "prompt_token_ids"} & plain.keys()


@pytest.mark.parametrize("logprobs", [False, True])
@pytest.mark.parametrize(("path", "asked"), PATHS)
def test_a_stream_has_the_ids_of_each_token_once(web, path, asked, logprobs):
    more = {"logprobs": 2 if path == "/v1/completions" else True} if logprobs else {}
    asked = {**asked, **more, "stream": True, "return_token_ids": True}
    found = [chunk["choices"][0] for chunk in events(web.post(path, json=asked).text)]
    assert found[0]["prompt_token_ids"]
    assert [token for each in found for token in each.get("token_ids", [])] == IDS
    assert all(len(each.get("token_ids", [])) <= 1 for each in found)


def test_each_text_of_several_prompts_has_its_own(web):
    asked = {**TEXT, "prompt": ["a", "b"], "n": 2, "max_tokens": 3, "return_token_ids": True}
    choices = web.post("/v1/completions", json=asked).json()["choices"]
    assert [each["prompt_token_ids"] for each in choices] == [[97], [97], [98], [98]]
    assert [each["token_ids"] for each in choices] == [IDS[:3]] * 4


def test_alternatives_have_ids(web):
    asked = {**CHAT, "logprobs": True, "top_logprobs": 2, "max_tokens": 2, "return_token_ids": True}
    content = web.post("/v1/chat/completions", json=asked).json()["choices"][0]["logprobs"]["content"]
    assert [entry["token_id"] for entry in content] == IDS[:2]
    assert all(len({one["token_id"] for one in entry["top_logprobs"]}) == 2 for entry in content)
    asked = {**TEXT, "logprobs": 2, "max_tokens": 2, "return_token_ids": True}
    found = web.post("/v1/completions", json=asked).json()["choices"][0]["logprobs"]
    assert found["token_ids"] == IDS[:2]
    assert [tops[0]["token_id"] for tops in found["top_tokens"]] == IDS[:2]
    assert all(len({one["token_id"] for one in tops}) == 2 for tops in found["top_tokens"])


def test_a_token_is_shown_with_its_space():
    tokenizer = SPMTokenizer(vocabularies.metadata(vocabularies.spm()))
    ids = tokenizer.encode("hello hello")
    assert tokenizer.space_prefix
    assert [tokenizer.spelled(token) for token in ids] == [" hello", " hello"]
    assert tokenizer.spelled(tokenizer.encode("<|end|>", special=True, bos=False)[0]) == "<|end|>"
