"""What is refused: never silently, with the right status, naming the field, and without harm to others."""

import http.client
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import httpx
import pytest

from serving import TINY, endless, mock, serving, until, visiting
from stretto import Limits
from stretto.errors import InvalidRequest
from stretto.server.app import create_app
from stretto.server.settings import ModelEntry, RequestLimits, Settings, api_keys

CHAT = {"model": "mock", "messages": [{"role": "user", "content": "Hi"}], "temperature": 0}
TEXT = {"model": "mock", "prompt": "Say it: ", "temperature": 0}
POST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
SMALL = RequestLimits(
    body=20_000, head=4_000, head_seconds=1.0, body_seconds=1.0, prompt=5_000, n=4, prompts=3, schema=500
)


@pytest.fixture(scope="module")
def server():
    with serving(limits=SMALL) as running:
        yield running


CHAT_WRONG = [
    ({"bogus": 1}, "bogus", "unknown_field"),
    ({"temperature": "hot"}, "temperature", "invalid_value"),
    ({"temperature": -1}, "temperature", "invalid_value"),
    ({"temperature": True}, "temperature", "invalid_value"),
    ({"top_p": -0.1}, "top_p", "invalid_value"),
    ({"n": 0}, "n", "invalid_value"),
    ({"n": 5}, "n", "over_limit"),
    ({"max_tokens": -1}, "max_tokens", "invalid_value"),
    ({"max_tokens": 3.5}, "max_tokens", "invalid_value"),
    ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens", None),
    ({"logit_bias": {"cat": 1}}, "logit_bias.cat", "invalid_value"),
    ({"logit_bias": {"999999": 1}}, "logit_bias", None),
    ({"stop": [""]}, "stop[0]", "invalid_value"),
    ({"stop": 5}, "stop", "invalid_value"),
    ({"stream": "yes"}, "stream", "invalid_value"),
    ({"stream_options": {"include_usage": True}}, "stream_options", None),
    ({"top_logprobs": 3}, "top_logprobs", None),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "invalid_value"),
    ({"messages": []}, "messages", "invalid_value"),
    ({"messages": "Hi"}, "messages", "invalid_value"),
    ({"messages": [{"role": "wizard", "content": "Hi"}]}, "messages[0].role", "invalid_value"),
    ({"messages": [{"role": "user", "content": "Hi", "colour": 1}]}, "messages[0].colour", "unknown_field"),
    ({"messages": [{"role": "user"}]}, "messages[0].content", None),
    (
        {"messages": [{"role": "user", "content": [{"type": "video", "url": "x"}]}]},
        "messages[0].content[0]",
        None,
    ),
    ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages[0].content", None),
    ({"messages": [{"role": "user", "content": "x" * 2000}]}, "messages", "context_length_exceeded"),
    ({"messages": [{"role": "user", "content": "x" * 5001}]}, "messages", "over_limit"),
    ({"model": "other"}, "model", "model_not_found"),
    ({"model": "../../etc/passwd"}, "model", "model_not_found"),
    ({"model": str(TINY)}, "model", "model_not_found"),
    ({"store": 1}, "store", "invalid_value"),
    ({"function_call": "auto"}, "function_call", "invalid_value"),
    ({"web_search_options": {"x": 1}}, "web_search_options", "unknown_field"),
    ({"seed": 1 << 64}, "seed", "invalid_value"),
    ({"cache_pin": "../x"}, "cache_pin", "invalid_value"),
    ({"response_format": {"type": "xml"}}, "response_format", "invalid_value"),
]


@pytest.mark.parametrize(("wrong", "param", "code"), CHAT_WRONG, ids=lambda value: json.dumps(value)[:40])
def test_a_wrong_field_is_named(web, wrong, param, code):
    answer = web.post("/v1/chat/completions", content=json.dumps({**CHAT, **wrong}))
    error = answer.json()["error"]
    assert answer.status_code == (404 if code == "model_not_found" else 400)
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    if code is not None:
        assert error["code"] == code
    assert param.split("[")[0].split(".")[0] in error["message"] or code in ("context_length_exceeded", None)


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"prompt": 1.5}, "prompt"),
        ({"prompt": ["a", "b", "c", "d"]}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [99999]}, "prompt"),
        ({"best_of": 3, "stream": True}, "best_of"),
        ({"best_of": 2, "n": 3}, "n"),
        ({"suffix": "x"}, "suffix"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 0, "echo": True, "stream": True}, "stream"),
        ({"echo": True, "logprobs": 1, "continue_token_ids": [65]}, "continue_token_ids"),
        ({"prompt": ["a", "b"], "cache_pin": "x"}, "cache_pin"),
    ],
    ids=str,
)
def test_a_wrong_completion_is_refused(web, wrong, param):
    answer = web.post("/v1/completions", json={**TEXT, **wrong})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


@pytest.mark.parametrize(
    "body",
    ["", "{", "[]", "null", '"x"', "{}", "[" * 9000, '{"model": ' + "9" * 5000 + "}", "\xff", '{"a": NaN}'],
)
def test_what_is_no_request_is_refused(web, body):
    answer = web.post("/v1/chat/completions", content=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_other_paths_and_methods(web):
    assert web.get("/v1/nothing").json()["error"]["code"] == "not_found"
    wrong = web.get("/v1/chat/completions")
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "method_not_allowed")
    assert web.get("/../../etc/passwd").status_code == 404


def test_ollama_clients_get_their_own_shape(web):
    answer = web.post("/api/chat", json={"model": "mock", "messages": [], "bogus": 1})
    assert answer.status_code == 400
    assert answer.json() == {"error": "bogus is no field that is known here; leave it out"}


# -- how much --


def raw(server, data, seconds=60.0):
    """What comes back for some bytes, until the server closes."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=seconds) as link:
        link.sendall(data)
        pieces = []
        while piece := link.recv(65536):
            pieces.append(piece)
        return b"".join(pieces)


def test_a_body_over_the_limit_is_refused(web, server):
    assert web.post("/v1/completions", json={**TEXT, "prompt": "x" * 20_000}).status_code == 413
    told = POST + b"Content-Length: 9999999\r\n\r\n"
    link = http.client.HTTPConnection("127.0.0.1", server.port)
    link.sock = socket.create_connection(("127.0.0.1", server.port))
    link.sock.sendall(told)  # and no body: the claim is enough
    answer = http.client.HTTPResponse(link.sock)
    answer.begin()
    assert answer.status == 413
    assert json.loads(answer.read())["error"]["code"] == "body_too_large"
    link.close()
    chunked = (b"%x\r\n" % 30_000 + b"x" * 30_000 + b"\r\n") * 2 + b"0\r\n\r\n"
    head = POST + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    assert raw(server, head + chunked).startswith(b"HTTP/1.1 413")


def test_a_body_that_does_not_come_is_not_waited_for(server):
    begun = time.monotonic()
    head = POST + b"Content-Length: 10\r\nConnection: close\r\n\r\n{"
    assert raw(server, head).startswith(b"HTTP/1.1 408")
    assert time.monotonic() - begun > 0.9


def test_headers_over_the_limit_are_refused(server):
    answer = raw(server, b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 5000)
    assert answer.startswith(b"HTTP/1.1 431")
    assert json.loads(answer.split(b"\r\n\r\n")[1])["error"]["code"] == "headers_too_large"


def test_headers_that_do_not_come_are_not_waited_for(server):
    answer = raw(server, b"GET /health HTTP/1.1\r\nHost: loc")
    assert answer.startswith(b"HTTP/1.1 408")
    assert json.loads(answer.split(b"\r\n\r\n")[1])["error"]["code"] == "headers_too_slow"
    assert raw(server, b"") == b""  # who says nothing is told nothing


def test_connections_over_the_limit_are_told_to_come_later():
    with visiting(limits=RequestLimits(connections=3)) as (server, web), ExitStack() as idle:
        open_now = server.server.server_state.connections
        for _ in range(3):
            idle.enter_context(socket.create_connection(("127.0.0.1", server.port)))
        until(lambda: len(open_now) == 3)
        refused = web.post("/v1/completions", json=TEXT)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert refused.json()["error"]["code"] == "too_many_connections"
        assert refused.headers["connection"] == "close"
        idle.close()
        until(lambda: not open_now)
        assert web.post("/v1/completions", json=TEXT).status_code == 200


def test_bodies_together_have_a_limit():
    limits = RequestLimits(body=5_000, bodies=6_000, body_seconds=60.0)
    with visiting(limits=limits) as (server, web):
        head = POST + b"Content-Length: 4000\r\n\r\n"
        with socket.create_connection(("127.0.0.1", server.port)) as held:
            held.sendall(head + b" " * 3900)
            until(lambda: server.state.traffic.body_bytes >= 3900)
            refused = web.post("/v1/completions", json={**TEXT, "prompt": "x" * 3000})
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "busy")
            assert refused.headers["retry-after"] == "1"
        until(lambda: server.state.traffic.body_bytes == 0)
        assert web.post("/v1/completions", json={**TEXT, "prompt": "x" * 900}).status_code == 200


def test_a_full_queue_says_when_to_come_again():
    opener = endless(limits=Limits(max_running=1, max_queue=1))
    with visiting(opener, max_running=1, max_queue=1) as (server, web):
        threads = [
            threading.Thread(
                target=web.post, args=("/v1/completions",), kwargs={"json": {**TEXT, "max_tokens": 300}}
            )
            for _ in range(2)
        ]
        threads[0].start()
        until(lambda: server.llm() and server.llm().metrics.running == 1)
        threads[1].start()
        until(lambda: server.llm().metrics.waiting == 1)
        refused = web.post("/v1/completions", json=TEXT)
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "2"
        assert refused.json()["error"]["code"] == "queue_full"
        assert web.post("/v1/completions", json={**TEXT, "n": 2}).status_code == 400  # would never fit
        best = web.post("/v1/completions", json={**TEXT, "n": 1, "best_of": 2}).json()["error"]
        assert (best["param"], best["code"]) == ("best_of", "over_limit")
        for thread in threads:
            thread.join()


def test_scores_wait_in_the_same_queue():
    """They are scheduled with generations, and refused when too many wait."""
    limits = Limits(max_running=1, max_queue=2)
    body = {"model": "mock", "text": "abcdef"}
    with (
        serving(endless(0.01, limits=limits)) as server,
        ThreadPoolExecutor(4) as clients,
        httpx.Client(base_url=server.url, timeout=60) as web,
    ):
        long = clients.submit(
            httpx.post, f"{server.url}/v1/completions", json={**TEXT, "max_tokens": 200}, timeout=60
        )
        until(lambda: server.llm() and server.llm().metrics.running == 1)
        some = [
            clients.submit(httpx.post, f"{server.url}/stretto/score", json=body, timeout=60) for _ in range(2)
        ]
        until(lambda: server.llm().metrics.waiting == 2)
        refused = web.post("/stretto/score", json=body)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "2")
        assert refused.json()["error"]["code"] == "queue_full"
        assert long.result().status_code == 200
        assert [len(one.result().json()["logprobs"]) for one in some] == [6, 6]


def test_a_request_that_takes_too_long_ends_with_what_there_is():
    with visiting(endless(0.02), limits=RequestLimits(seconds=1.0)) as (_, web):
        choice = web.post("/v1/completions", json={**TEXT, "max_tokens": 900}).json()["choices"][0]
        assert (choice["finish_reason"], choice["stop_reason"]) == ("length", "timeout")
        assert 0 < len(choice["text"]) <= 50
        mine = web.post("/v1/completions", json={**TEXT, "max_tokens": 900, "timeout": 0.1}).json()[
            "choices"
        ][0]
        assert len(mine["text"]) <= 5
        none = web.post("/v1/completions", json={**TEXT, "timeout": 1e-9})
        assert (none.status_code, none.json()["choices"][0]["text"]) == (200, "")


def test_a_failing_request_harms_no_other():
    def opener(entry):
        llm = mock("x" * 200, 0.01)(entry)
        forward = llm.tokenizer.encode

        def encode(text, *args, **options):
            if "boom" in text:
                raise RuntimeError("a bug")
            return forward(text, *args, **options)

        llm.tokenizer.encode = encode
        return llm

    with serving(opener) as server, httpx.Client(base_url=server.url, timeout=60) as web:
        found = []
        good = threading.Thread(
            target=lambda: found.append(web.post("/v1/completions", json={**TEXT, "max_tokens": 100}))
        )
        good.start()
        for _ in range(5):
            bad = web.post("/v1/completions", json={**TEXT, "prompt": "boom"})
            assert bad.status_code == 500
            assert "bug" not in bad.text
        good.join()
        assert found[0].json()["choices"][0]["text"] == "x" * 100


# -- who --


def test_a_key_is_needed_where_one_is_set():
    with visiting(api_keys=("secret-1", "secret-2")) as (_, web):
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "secret-1"}):
            refused = web.post("/v1/completions", json=TEXT, headers=headers)
            assert refused.status_code == 401
            assert refused.headers["www-authenticate"] == "Bearer"
            assert refused.json()["error"]["code"] == "invalid_api_key"
        assert web.get("/metrics").status_code == 401
        for key in ("secret-1", "secret-2"):
            good = web.post("/v1/completions", json=TEXT, headers={"authorization": f"Bearer {key}"})
            assert good.status_code == 200
        assert [web.get(path).status_code for path in ("/health", "/docs", "/openapi.json")] == [200] * 3


def test_web_pages_are_kept_out(web, server):
    elsewhere = {"origin": "https://evil.example"}
    assert web.post("/v1/completions", json=TEXT, headers=elsewhere).json()["error"]["code"] == "wrong_origin"
    assert web.post("/v1/completions", json=TEXT, headers={"origin": server.url}).status_code == 200
    rebound = web.get("/v1/models", headers={"host": "evil.example"})
    assert (rebound.status_code, rebound.json()["error"]["code"]) == (421, "wrong_host")
    assert "access-control-allow-origin" not in web.get("/health").headers


@pytest.mark.parametrize(
    "host",
    ["127.evil.example", "127.0.0.1.evil.com", "localhost.evil.example", "2130706433", "evil.example:80"],
)
def test_names_that_only_look_like_this_machine_are_refused(web, host):
    rebound = web.get("/v1/models", headers={"host": host})
    assert (rebound.status_code, rebound.json()["error"]["code"]) == (421, "wrong_host")


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:80", "127.0.0.1", "127.8.8.8:1", "[::1]", "[::1]:99"]
)
def test_this_machine_has_several_names(web, host):
    assert web.get("/v1/models", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["[", "[::1", "a b", "a:b", "", "[127.0.0.1]", "http://localhost", "x" * 300]
)
def test_a_host_that_is_none_is_a_400(web, host):
    answer = web.get("/v1/models", headers={"host": host})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_host")


def test_an_origin_that_is_none_is_refused(web):
    for origin in ("http://[", "https://", "http://a b", "http://[::1"):
        answer = web.get("/v1/models", headers={"origin": origin})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_origin")
    for origin in ("null", "://", "localhost", "http://localhost:1"):
        assert web.get("/v1/models", headers={"origin": origin}).status_code == 403


def test_a_load_balancer_may_ask_for_health_without_a_name(server):
    assert b" 200 " in raw(server, b"GET /health HTTP/1.0\r\n\r\n").split(b"\r\n")[0]
    assert b" 400 " in raw(server, b"GET /v1/models HTTP/1.0\r\n\r\n").split(b"\r\n")[0]


def test_without_keys_other_addresses_have_literal_names_only():
    with visiting(host="0.0.0.0", no_auth=True, hosts=("box.lan",)) as (_, web):
        for host, status in (("box.lan", 200), ("10.0.0.7:8080", 200), ("localhost", 200), ("evil.lan", 421)):
            assert web.get("/v1/models", headers={"host": host}).status_code == status
    with pytest.raises(InvalidRequest, match="--allow-host takes a name"):
        Settings(MODELS, hosts=("Box.lan:80",))


def test_a_key_is_asked_for_before_anything_is_read():
    with visiting(api_keys=("k",)) as (_, web):
        assert web.get("/v1/models", headers={"host": "[", "origin": "http://["}).status_code == 401


def test_an_answer_before_the_body_closes_the_connection(server):
    head = POST + b"Origin: https://evil.example\r\nContent-Length: 1000\r\n\r\n{"
    answer = raw(server, head)  # returns when the server closes
    assert b" 403 " in answer.split(b"\r\n")[0]
    assert b"connection: close" in answer.lower()


def test_a_page_that_was_allowed_may_ask():
    page = {"origin": "https://good.example"}
    with visiting(origins=("https://good.example",)) as (_, web):
        before = web.options("/v1/completions", headers={**page, "access-control-request-method": "POST"})
        assert before.status_code == 204
        assert before.headers["access-control-allow-origin"] == "https://good.example"
        assert web.post("/v1/completions", json=TEXT, headers=page).status_code == 200
        assert web.get("/health", headers={"origin": "https://other.example"}).status_code == 403


def test_all_pages_may_ask_where_the_operator_says_so():
    with visiting(origins=("*",)) as (_, web):
        for origin in ("localhost", "https://any.example", "null"):
            before = web.options("/v1/completions", headers={"origin": origin})
            assert before.status_code == 200
            allowed = {
                name[21:]: value for name, value in before.headers.items() if name.startswith("access")
            }
            assert allowed == {
                "origin": origin,
                "credentials": "true",
                "methods": "GET, POST, DELETE, OPTIONS",
                "headers": "*",
            }
            answer = web.post("/v1/completions", json=TEXT, headers={"origin": origin})
            assert answer.headers["access-control-allow-origin"] == origin
        body = {"model": "mock"}
        assert web.post("/stretto/models/unload", json=body, headers={"origin": origin}).status_code == 403
        assert web.post("/stretto/models/unload", json=body).status_code == 200
        assert web.get("/health", headers={"host": "evil.example"}).status_code == 200
        assert web.get("/v1/models", headers={"host": "evil.example"}).status_code == 421


def test_pages_of_this_machine_may_ask_where_the_operator_says_so():
    with visiting(origins=("localhost",)) as (_, web):
        for origin in ("http://localhost", "http://localhost:3000", "http://127.0.0.1:1", "http://[::1]:80"):
            before = web.options("/v1/completions", headers={"origin": origin})
            assert (before.status_code, before.headers["access-control-allow-origin"]) == (200, origin)
        body = {"model": "mock"}
        assert web.post("/stretto/models/unload", json=body, headers={"origin": origin}).status_code == 403
        for origin in ("http://evil.example", "http://localhost.evil.example", "http://notlocalhost", "null"):
            before = web.options("/v1/completions", headers={"origin": origin})
            assert before.status_code == 200  # as llama-server: it is the browser that asks no further
            assert not [name for name in before.headers if name.startswith("access-control")]
            assert web.get("/v1/models", headers={"origin": origin}).status_code == 403


def test_paths_are_disabled():
    with visiting(disabled=("/metrics", "/slots", "/api", "/")) as (_, web):
        for path in ("/metrics", "/slots", "/slots/0", "/api/tags"):
            answer = web.get(path)
            assert answer.status_code == 501
            assert f"--disable /{path.split('/')[1]}" in answer.text
        assert web.get("/slots").json()["error"]["type"] == "not_supported_error"
        assert web.get("/").status_code == 404
        assert web.get("/page/style.css").status_code == 404
        for path in ("/v1/models", "/props", "/health"):
            assert web.get(path).status_code == 200
    with visiting(disabled=("/metrics",), api_keys=("k",)) as (_, web):
        assert web.get("/metrics").status_code == 401
    with pytest.raises(InvalidRequest, match="--disable /metric: there is no such path"):
        create_app(Settings(MODELS, disabled=("/metric",)))
    with pytest.raises(InvalidRequest, match="--disable '': there is no such path"):
        create_app(Settings(MODELS, disabled=("",)))  # all paths begin so


MODELS = (ModelEntry("mock", str(TINY)),)


def test_other_addresses_need_a_key_or_a_word():
    with pytest.raises(InvalidRequest, match="set --api-key"):
        Settings(MODELS, host="0.0.0.0")
    assert not Settings(MODELS, host="0.0.0.0", no_auth=True).loopback
    assert not Settings(MODELS, host="0.0.0.0", api_keys=("k",)).loopback
    for host in ("127.0.0.1", "localhost", "::1", "127.8.8.8"):
        assert Settings(MODELS, host=host).loopback
    with pytest.raises(InvalidRequest, match="contradict"):
        Settings(MODELS, api_keys=("k",), no_auth=True)
    with pytest.raises(InvalidRequest, match="two models are called"):
        Settings(MODELS * 2)


def test_keys_come_from_three_places(tmp_path, monkeypatch):
    file = tmp_path / "keys"
    file.write_text("two\n\nthree\n")
    monkeypatch.setenv("STRETTO_API_KEY", "four")
    assert api_keys(["one"], file) == ("one", "two", "three", "four")
    file.write_text("\n")
    with pytest.raises(InvalidRequest, match="no key"):
        api_keys(None, file)
    with pytest.raises(InvalidRequest, match="printable"):
        Settings(MODELS, api_keys=("with space",))


def test_without_a_chat_template_the_endpoint_that_continues_texts_is_named():
    def without_template(entry):
        llm = mock("yes")(entry)
        llm.template = None
        return llm

    raw = {"model": "mock", "prompt": "Hi", "raw": True, "stream": False}
    with visiting(without_template) as (_, web):
        chat = web.post("/v1/chat/completions", json=CHAT)
        generated = web.post("/api/generate", json=raw | {"raw": False})
        assert (chat.status_code, generated.status_code) == (400, 400)
        assert "/v1/completions continues" in chat.json()["error"]["message"]
        assert 'POST /api/generate with "raw": true continues' in generated.json()["error"]
        assert web.post("/api/generate", json=raw).json()["response"] == "yes"


@pytest.mark.parametrize(
    ("path", "body", "remedy"),
    [
        ("/v1/chat/completions", CHAT | {"max_tokens": -1}, '; send "n_predict": -1 to generate'),
        ("/v1/completions", TEXT | {"max_tokens": -1}, '; send "n_predict": -1 to generate'),
        ("/v1/responses", {"model": "mock", "input": "Hi", "max_output_tokens": -1}, "; leave it out to gen"),
        ("/v1/messages", CHAT | {"max_tokens": -1}, "it is -1"),  # it has no such field, and needs a number
    ],
)
def test_a_number_that_means_no_limit_elsewhere_is_answered_with_ours(server, path, body, remedy):
    answer = httpx.post(f"{server.url}{path}", json=body)
    message = answer.json()["error"]["message"]
    assert answer.status_code == 400
    assert remedy in message
    assert ("n_predict" in message) == ("n_predict" in remedy)
