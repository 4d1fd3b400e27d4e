"""`continue_token_ids`: an answer goes on behind tokens that it begins with, in every respect."""

import json

import pytest

from serving import HELLO, visiting
from stretto.testing import mock_llm
from thinking import HELLO as ASKED
from thinking import KINDS, make

CHAT = "/v1/chat/completions"
TEXT = {"model": "mock", "prompt": "Say it: ", "temperature": 0, "max_tokens": 200}
TALK = {"model": "mock", "messages": ASKED, "temperature": 0}
PATHS = [("/v1/completions", TEXT), (CHAT, TALK)]
CALL = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
TOOLS = [{"type": "function", "function": {"name": "now"}}]


def asked(web, path, **body):
    """The choice and the usage of an answer, with its ids."""
    answer = web.post(path, json={"return_token_ids": True, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0], answer.json()["usage"]


def streamed(web, **body):
    """The deltas of a streamed chat."""
    text = web.post(CHAT, json={"return_token_ids": True, "stream": True, **body}).text
    chunks = [json.loads(line.removeprefix("data: ")) for line in text.split("\n\n")[:-2]]
    return [choice["delta"] for chunk in chunks for choice in chunk["choices"]]


@pytest.mark.parametrize(("path", "body"), PATHS)
def test_a_text_goes_on_from_the_cache(web, path, body):
    whole, _ = asked(web, path, **body)
    ids = whole["token_ids"]
    rest, usage = asked(web, path, **body, continue_token_ids=ids[:9])
    assert rest["token_ids"] == ids[9:]
    assert rest["prompt_token_ids"] == [*whole["prompt_token_ids"], *ids[:9]]
    assert usage["prompt_tokens"] == len(rest["prompt_token_ids"])
    assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] - 1


def test_each_key_goes_on_from_its_own_cache():
    with visiting(api_keys=("one", "two")) as (_, web):
        cached = []
        for key, ids in (("one", None), ("two", [72, 101]), ("one", [72, 101])):
            body = TALK if ids is None else {**TALK, "continue_token_ids": ids}
            usage = web.post(CHAT, json=body, headers={"authorization": f"Bearer {key}"}).json()["usage"]
            cached.append(usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"])
        assert cached[0] == cached[1] - 2
        assert cached[2] == 1


def test_what_has_ended_cannot_go_on(web):
    answer = web.post(CHAT, json={**TALK, "continue_token_ids": [72, 257]})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "already_ended")
    more = web.post(CHAT, json={**TALK, "continue_token_ids": [72, 257], "ignore_eos": True, "max_tokens": 1})
    assert more.status_code == 200


def test_several_texts_go_on_from_one_start(web):
    answer = web.post(
        "/v1/completions", json={**TEXT, "n": 2, "presence_penalty": 0.1, "continue_token_ids": [72, 101]}
    )
    assert [each["text"] for each in answer.json()["choices"]] == [HELLO[2:]] * 2


def test_a_character_may_be_cut_in_two():
    with visiting(lambda entry: mock_llm("aéb")) as (_, web):
        rest, _ = asked(web, "/v1/completions", **TEXT, continue_token_ids=list("aé".encode()[:2]))
        assert rest["text"] == "éb"


def test_a_schema_is_kept_to_from_the_middle_on():
    shape = {
        "type": "json_schema",
        "json_schema": {
            "name": "x",
            "schema": {
                "type": "object",
                "properties": {"name": {"type": "string", "maxLength": 4}, "age": {"enum": [7]}},
                "required": ["name", "age"],
                "additionalProperties": False,
            },
        },
    }
    with visiting(lambda entry: mock_llm(lambda seen: [(7 * t + len(seen)) % 13 for t in range(258)])) as (
        _,
        web,
    ):
        begun = '{"name": "No'
        rest, _ = asked(
            web, CHAT, **TALK, response_format=shape, continue_token_ids=list(begun.encode()), max_tokens=60
        )
        found = json.loads(begun + rest["message"]["content"])
        assert found["name"].startswith("No")
        assert found["age"] == 7
        wrong = web.post(CHAT, json={**TALK, "response_format": shape, "continue_token_ids": [65]})
        assert wrong.status_code == 400
        assert wrong.json()["error"]["param"] == "continue_token_ids"


def test_a_schema_that_is_complete_ends_the_text():
    shape = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["a"]}}}
    with visiting() as (_, web):
        rest, _ = asked(web, CHAT, **TALK, response_format=shape, continue_token_ids=list(b'"a"'))
        assert (rest["message"]["content"], rest["finish_reason"]) == ("", "stop")


@pytest.mark.parametrize("name", ["qwen3", "qwen3.5", "gpt-oss", "mistral"])
def test_reasoning_goes_on_and_ends(name):
    kind = KINDS[name]
    with visiting(lambda entry: make(name)) as (_, web):
        whole, _ = asked(web, CHAT, **TALK)
        ids = whole["token_ids"]
        for n in range(1, len(ids), 3):
            rest, _ = asked(web, CHAT, **TALK, continue_token_ids=ids[:n])
            message = rest["message"]
            assert rest["token_ids"] == ids[n:]
            assert kind.reasoning.endswith(message.get("reasoning_content", ""))
            assert kind.text.endswith(message["content"])
        assert message.get("reasoning_content", "") == ""


def test_a_call_that_has_begun_is_found():
    with visiting(lambda entry: make("qwen3", f"<think>\nHm.\n</think>\n\nWait.\n{CALL}")) as (_, web):
        talk = {**TALK, "tools": TOOLS}
        ids = asked(web, CHAT, **talk)[0]["token_ids"]
        for n in (4, len(ids) - 20, len(ids) - 3):
            rest, _ = asked(web, CHAT, **talk, continue_token_ids=ids[:n])
            assert rest["message"]["tool_calls"][0]["function"]["name"] == "now"
            deltas = streamed(web, **talk, continue_token_ids=ids[:n])
            calls = [call["function"] for one in deltas for call in one.get("tool_calls", [])]
            assert [call["name"] for call in calls if "name" in call] == ["now"]
            assert "tool_call>" not in "".join(one.get("content") or "" for one in deltas)
