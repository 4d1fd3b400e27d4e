"""Prompts that nearly match a cached one: Claude Code's billing line is left out, all else is told."""

import json
from contextlib import ExitStack

import httpx
import pytest

from serving import endless, mock, serving, visiting
from stretto.server.anthropic.endpoints import has_billing, without_billing
from stretto.server.anthropic.schemas import MessagesRequest, TextBlock

LINE = "x-anthropic-billing-header: cc_version=2.1.197.0d9; cc_entrypoint=cli; cch={};"
RULES = "You are a careful assistant that reads files before it changes them. " * 3


def ask(system, text="Hello", **fields):
    messages = [{"role": "user", "content": text}]
    return {"model": "mock", "max_tokens": 2, "system": system, "messages": messages, **fields}


def blocks(*texts):
    return [{"type": "text", "text": text} for text in texts]


def test_exactly_the_billing_line_is_left_out():
    line = LINE.format("0a1b2")
    assert without_billing(f"{line}\n{RULES}") == RULES
    assert without_billing(line) == ""
    for system in (
        RULES,
        f"{RULES}\n{line}",  # not at the start
        f"Note: {line}\n{RULES}",
        f"{line} {RULES}",  # something else in its line
        "x-anthropic-billing-header: \nBe brief.",
        "x-anthropic-billing-header: today is Monday\nBe brief.",
        "Today is 2026-11-19.\nBe brief.",
        "",
        None,
    ):
        assert without_billing(system) == system
        assert without_billing(system) is system
    several = [TextBlock(type="text", text=text) for text in (line, RULES, line)]
    assert [one.text for one in without_billing(several)] == [RULES, line]
    several[0].text = f"{line}\n{RULES}"
    assert [one.text for one in without_billing(several)] == [RULES, RULES, line]
    assert has_billing(MessagesRequest.model_validate(ask(blocks(line, RULES))))
    assert not has_billing(MessagesRequest.model_validate(ask(blocks(RULES, line))))


@pytest.fixture(scope="module")
def web():
    with visiting(mock()) as (_, web):
        yield web


def test_a_prompt_is_found_behind_a_billing_line_that_changes(web):
    answers = [
        web.post("/v1/messages", json=ask(blocks(LINE.format(cch), RULES))) for cch in ("00a1f", "99b2e")
    ]
    assert [one.headers["x-stretto-left-out"] for one in answers] == ["x-anthropic-billing-header"] * 2
    used = answers[1].json()["usage"]
    assert used["input_tokens"] == 1
    assert used["cache_read_input_tokens"] > len(RULES)
    assert "cache_difference" not in used
    plain = web.post("/v1/messages", json=ask(blocks(RULES)))
    assert "x-stretto-left-out" not in plain.headers
    assert plain.json()["usage"]["input_tokens"] == 1  # the same prompt
    counted = [
        web.post("/v1/messages/count_tokens", json={k: v for k, v in one.items() if k != "max_tokens"}).json()
        for one in (ask(blocks(LINE.format("1"), RULES)), ask(blocks(RULES)))
    ]
    assert counted[0] == counted[1]


def test_it_stays_where_the_operator_says_so():
    with visiting(mock(), billing_line=True) as (_, web):
        web.post("/v1/messages", json=ask(blocks(LINE.format("00a1f"), RULES)))
        second = web.post("/v1/messages", json=ask(blocks(LINE.format("99b2e"), RULES)))
    assert "x-stretto-left-out" not in second.headers
    used = second.json()["usage"]
    assert used["cache_read_input_tokens"] < 100
    told = used["cache_difference"]
    assert told["token"] == used["cache_read_input_tokens"]
    assert told["of"] == used["cache_read_input_tokens"] + used["input_tokens"]
    assert told["before"].endswith("cch=")
    assert told["after"].startswith("99b2e")


def complete(web, prompt, **fields):
    body = {"model": "mock", "prompt": prompt, "max_tokens": 2, "temperature": 0, **fields}
    answer = web.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["usage"]


def test_usage_says_where_a_prompt_leaves_a_cached_one(web):
    text = "Today is Monday. " + "Read all of it, then answer in one line. " * 4
    assert "cache_difference" not in complete(web, text)
    used = complete(web, text.replace("Monday", "Sunday"))
    assert used["cache_difference"] == {
        "token": 9,
        "of": len(text),
        "before": "Today is ",
        "after": "Sunday. Read",
    }
    assert used["prompt_tokens_details"]["cached_tokens"] == 9
    assert "cache_difference" not in complete(web, text + "And more of it, behind its end. " * 4)
    assert "cache_difference" not in complete(web, text[:-30] + "x" * 30)  # little would have been found
    assert "cache_difference" not in complete(web, "Quite another text, " * 10)


def test_a_caller_is_told_of_its_own_prompts_alone():
    keys = {"api_keys": ("ann", "bob"), "admin_keys": ("boss",)}
    text = "The code of the safe is 1234. " * 6
    guess = text.replace("1234", "9999")
    with serving(endless(0.005, context_length=8192, cells=16384), **keys) as server, ExitStack() as stack:
        ann, bob, boss = (
            stack.enter_context(
                httpx.Client(base_url=server.url, timeout=60, headers={"authorization": f"Bearer {key}"})
            )
            for key in ("ann", "bob", "boss")
        )
        complete(ann, text)
        assert "cache_difference" not in complete(bob, guess)
        told = complete(ann, guess)["cache_difference"]
        assert (told["before"], told["after"]) == ("the safe is ", "9999. The co")
        body = {"model": "mock", "prompt": text.replace("safe", "door"), "max_tokens": 4000, "stream": True}
        with ann.stream("POST", "/v1/completions", json=body) as stream:
            lines = stream.iter_lines()  # the connection is closed without it
            next(lines)
            (mine,), (theirs,) = (web.get("/stretto/requests").json()["requests"] for web in (ann, boss))
            assert bob.get("/stretto/requests").json()["requests"] == []
        assert mine["cache_difference"]["after"].startswith("door")
        assert theirs["cache_difference"] == {"token": 16, "of": len(text)}


def test_the_log_says_where_and_not_what(caplog):
    with visiting(mock(), log="json") as (_, web), caplog.at_level("INFO", "stretto.server"):
        secret = "Call me at 555-0100. " * 6
        complete(web, secret)
        complete(web, secret.replace("555", "777"))
    found = [record.facts for record in caplog.records if hasattr(record, "facts")]
    assert found[-1]["differs"] == f"from a cached prompt at token 11 of {len(secret)}"
    assert "777" not in json.dumps(found[-1])
