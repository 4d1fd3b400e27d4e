"""Keys have shares: one with many requests does not keep another waiting; limits are refused by name."""

import json
import threading
from contextlib import ExitStack, contextmanager

import httpx
import pytest

from serving import endless, mock, serving, until
from stretto.engine.request import Summary
from stretto.errors import InvalidRequest
from stretto.server.http.errors import ApiError
from stretto.server.http.keys import KeyUse
from stretto.server.settings import KeyLimits, ModelEntry, Settings, parse_key

MODELS = (ModelEntry("mock", "mock.gguf"),)


@contextmanager
def clients(server, *keys):
    made = [
        httpx.Client(base_url=server.url, timeout=60, headers={"authorization": f"Bearer {key}"})
        for key in keys
    ]
    with ExitStack() as stack:
        yield [stack.enter_context(one) for one in made]


@contextmanager
def asking(web, *bodies):
    """Requests in threads of their own."""
    threads = [
        threading.Thread(target=web.post, args=("/v1/completions",), kwargs={"json": one}) for one in bodies
    ]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join(60)


def body(prompt, **fields):
    return {"model": "mock", "prompt": prompt, "max_tokens": 4, "temperature": 0, **fields}


def test_keys_have_settings_behind_them():
    usual = KeyLimits(requests=2)
    assert parse_key("k", usual) == ("k", usual)
    assert parse_key("k weight=0.5  cells=100", usual) == ("k", KeyLimits(0.5, 2, None, 100))
    for wrong, told in (
        ("k speed=2", "speed"),
        ("k weight=x", "number"),
        ("k weight=0", "weight"),
        ("k requests=0", "requests"),
        ("k requests=1 requests=2", "each once"),
        ("k cells=-1", "cells"),
    ):
        with pytest.raises(InvalidRequest, match=told):
            parse_key(wrong, usual)
    made = Settings(MODELS, api_keys=("one weight=3",), admin_keys=("boss",), key_tokens=1000)
    assert made.keys == {
        "one": (False, KeyLimits(3.0, tokens=1000)),
        "boss": (True, KeyLimits(tokens=1000)),
    }
    with pytest.raises(InvalidRequest, match="twice"):
        Settings(MODELS, api_keys=("one", "one weight=2"))


def used(n, cached=0):
    return Summary(n, cached, 0, None, None, ("stop",))


def test_tokens_of_a_minute_are_limited():
    now = [100.0]
    use = KeyUse("key-1", KeyLimits(tokens=1000), lambda: now[0])
    use.enter()
    use.leave(used(5000, cached=4600))
    use.enter(lambda: 599)
    with pytest.raises(ApiError, match=r"tokens: 1,000 tokens .* it may have 1,000") as refused:
        use.enter(lambda: 600)
    assert (refused.value.status, refused.value.param, refused.value.retry_after) == (429, "tokens", 61)
    now[0] = 130.0
    use.leave(used(700))
    with pytest.raises(ApiError) as refused:
        use.enter()
    assert refused.value.retry_after == 31  # when the first 400 are a minute old
    now[0] = 161.0
    use.enter()
    assert use.refused == {"tokens": 2}


def test_limits_are_refused_by_name():
    keys = ("ann requests=2", "bob cells=50", "carl tokens=20")
    with (
        serving(
            endless(0.002, cells=1 << 14, context_length=8192), api_keys=keys, admin_keys=("boss",)
        ) as server,
        clients(server, "ann", "bob", "carl", "boss") as (ann, bob, carl, boss),
    ):
        with asking(ann, *(body(f"a{i}", max_tokens=8000) for i in range(2))):
            until(lambda: len(server.state.generations) == 2)
            refused = ann.post("/v1/completions", json=body("more"))
            assert refused.status_code == 429
            assert refused.json()["error"]["param"] == "requests"
            assert refused.json()["error"]["code"] == "key_limit"
            assert int(refused.headers["retry-after"]) > 0
            assert 'stretto_key_requests{key="key-1"} 2' in boss.get("/metrics").text
            with boss.stream("GET", "/stretto/live") as events:
                told = next(line for line in events.iter_lines() if line.startswith('data: {"keys"'))
            shown = {use["key"]: use for use in json.loads(told.removeprefix("data: "))["keys"]}
            assert shown["key-1"]["requests"] == 2
            assert shown["key-1"]["limits"] == {"weight": 1.0, "requests": 2}
            for one in boss.get("/stretto/requests").json()["requests"]:
                boss.delete(f"/stretto/requests/{one['id']}")
        until(lambda: not server.state.generations)
        assert ann.post("/v1/completions", json=body("more")).status_code == 200

        assert bob.post("/v1/completions", json=body("b" * 40)).status_code == 200
        refused = bob.post("/v1/completions", json=body("b" * 60))
        assert (refused.status_code, refused.json()["error"]["param"]) == (429, "cells")

        assert carl.post("/v1/completions", json=body("c" * 30)).status_code == 200
        refused = carl.post("/v1/completions", json=body("again"))
        assert (refused.status_code, refused.json()["error"]["param"]) == (429, "tokens")
        assert 0 < int(refused.headers["retry-after"]) <= 61
        message = {"model": "mock", "max_tokens": 4, "messages": [{"role": "user", "content": "Hi"}]}
        told = carl.post("/v1/messages", json=message).json()["error"]
        assert told["type"] == "rate_limit_error"
        assert told["message"].startswith("tokens: ")

        lines = boss.get("/metrics").text
        assert 'stretto_key_refused_total{key="key-3",limit="tokens"} 2' in lines
        assert 'stretto_key_tokens_total{key="key-3",kind="prompt"} 30' in lines
        assert 'stretto_key_limit{key="key-3",limit="tokens"} 20' in lines
        lines = bob.get("/metrics").text
        assert 'key="key-2"' in lines
        assert 'key="key-1"' not in lines


def test_many_requests_of_a_key_do_not_keep_another_one_waiting():
    """Its answer is there while all of the others run."""
    opener = endless(0.002, cells=1 << 15, context_length=4096)
    many = [body(f"{i:02}" * 900, max_tokens=2000, stream=True) for i in range(24)]
    with (
        serving(opener, api_keys=("ann", "bob")) as server,
        clients(server, "ann", "bob") as (ann, bob),
        ExitStack() as streams,  # they are left at the end
    ):
        for one in many:
            streams.enter_context(ann.stream("POST", "/v1/completions", json=one))
        assert bob.post("/v1/completions", json=body("Hello")).status_code == 200
        assert len(server.state.generations) >= 24


def test_without_keys_and_limits_nothing_is_told():
    with serving(mock()) as server, httpx.Client(base_url=server.url) as alone:
        alone.post("/v1/completions", json=body("a"))
        assert "stretto_key" not in alone.get("/metrics").text
