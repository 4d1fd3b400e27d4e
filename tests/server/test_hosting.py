"""SageMaker's `/ping` and `/invocations`, Vertex AI's `/predict`; several addresses."""

import httpx
import pytest

from serving import HELLO, serving
from stretto import InvalidRequest
from stretto.server.settings import ModelEntry, Settings

CHAT = {"messages": [{"role": "user", "content": "Hi"}]}


def test_invocations_are_answered_as_their_endpoint_does(web):
    assert web.get("/ping").status_code == 200
    chat = web.post("/invocations", json=CHAT).json()
    assert (chat["object"], chat["choices"][0]["message"]["content"]) == ("chat.completion", HELLO)
    text = web.post("/invocations", json={"prompt": "Say", "max_tokens": 5}).json()
    assert (text["object"], text["choices"][0]["text"]) == ("text_completion", HELLO[:5])
    for other, path in (
        ({"input": "a"}, "/v1/embeddings"),
        ({"query": "a", "documents": ["b"]}, "/v1/rerank"),
    ):
        error, known = (web.post(one, json=other).json()["error"] for one in ("/invocations", path))
        assert error["message"] == known["message"]  # this model has no vectors
    events = web.post("/invocations", json={**CHAT, "stream": True}).text
    assert events.endswith("data: [DONE]\n\n")
    for wrong in ({}, {"text": "a"}, [], {**CHAT, "bogus": 1}):
        assert web.post("/invocations", json=wrong).status_code == 400


def test_instances_are_answered_in_order(web):
    chat, text = (
        {"@requestFormat": "chatCompletions", **CHAT},
        {"@requestFormat": "completions", "prompt": "a"},
    )
    asked = {"instances": [chat, CHAT, text], "parameters": {"max_tokens": 3}}
    found = web.post("/predict", json=asked).json()["predictions"]
    assert [one["object"] for one in found] == ["chat.completion", "chat.completion", "text_completion"]
    assert {one["usage"]["completion_tokens"] for one in found} == {3}
    wrong = [{"@requestFormat": "other"}, {"@requestFormat": 3}, {**CHAT, "stream": True}, {"bogus": 1}]
    for instance in wrong:
        assert web.post("/predict", json={"instances": [instance]}).status_code == 400
    assert web.post("/predict", json={"instances": []}).status_code == 400


def test_a_ping_needs_no_key():
    with serving(api_keys=("secret",)) as server:
        assert httpx.get(f"{server.url}/ping").status_code == 200
        assert httpx.post(f"{server.url}/invocations", json=CHAT).status_code == 401


def test_a_server_listens_on_several_addresses():
    with serving(host="127.0.0.1,127.0.0.2") as server:
        for host in ("127.0.0.1", "127.0.0.2"):
            assert httpx.get(f"http://{host}:{server.port}/health").status_code == 200


def test_addresses_are_checked():
    entry = ModelEntry("m", "m")
    assert Settings((entry,), host="127.0.0.1, ::1").loopback
    with pytest.raises(InvalidRequest, match="can be reached from elsewhere"):
        Settings((entry,), host="127.0.0.1,0.0.0.0")
    with pytest.raises(InvalidRequest, match="addresses with commas"):
        Settings((entry,), host="127.0.0.1,")
