"""What clients of other servers send: zeros, empty fields, plain strings, options that nobody knows here."""

import pytest

from serving import mock, visiting

CHAT = {"messages": [{"role": "user", "content": "Hi"}]}
PATHS = {  # path: body, the field of its limit
    "/v1/chat/completions": (CHAT, "max_tokens"),
    "/v1/chat/completions ": (CHAT, "max_completion_tokens"),
    "/v1/completions": ({"prompt": "Hi"}, "max_tokens"),
    "/v1/completions ": ({"prompt": ["Hi", "Ho"]}, "n_predict"),
    "/v1/messages": ({**CHAT, "max_tokens": 5}, "max_tokens"),
    "/api/chat": (CHAT, "options.num_predict"),
    "/api/generate": ({"prompt": "Hi"}, "options.num_predict"),
    "/completion": ({"prompt": "Hi"}, "n_predict"),
}


def with_field(body, name, value):
    outer, _, inner = name.rpartition(".")
    return {**body, outer: {inner: value}} if outer else {**body, name: value}


def said(answer):
    """The text of an answer, and the number of its tokens."""
    if "choices" in answer:
        texts = [one.get("text", one.get("message", {}).get("content")) for one in answer["choices"]]
        return "".join(text or "" for text in texts), answer["usage"]["completion_tokens"]
    if "usage" in answer:
        return "".join(block["text"] for block in answer["content"]), answer["usage"]["output_tokens"]
    if "eval_count" in answer:
        return answer.get("response", answer.get("message", {}).get("content")), answer["eval_count"]
    return answer["content"], answer["tokens_predicted"]


@pytest.mark.parametrize("path", PATHS)
def test_no_tokens_are_the_prompt_alone(path):
    body, name = PATHS[path]
    with visiting() as (_, web):
        asked = with_field({"model": "mock", **body}, name, 0)
        answer = web.post(path.strip(), json={**asked, "stream": False})
        assert answer.status_code == 200, answer.text
        assert said(answer.json()) == ("", 0)
        stream = web.post(path.strip(), json={**asked, "stream": True})
        assert stream.status_code == 200
        assert '"H"' not in stream.text  # the first token
        assert "length" in stream.text or "max_tokens" in stream.text or "limit" in stream.text


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/api/chat", "/completion"])
def test_a_top_p_of_zero_takes_the_most_probable_token(path):
    body, _ = PATHS[path]
    scores = [(7 * token) % 13 / 13 for token in range(258)]
    scores[65] = 1.5
    name = "options.top_p" if path.startswith("/api") else "top_p"
    with visiting(mock(lambda seen: scores)) as (_, web):
        limit = {"n_predict": 5} if path == "/completion" else {"max_tokens": 5}
        asked = with_field({"model": "mock", "stream": False, **body}, name, 0)
        asked = {**asked, "options": {"top_p": 0, "num_predict": 5}} if "options" in asked else asked | limit
        assert said(web.post(path, json=asked).json()) == ("AAAAA", 5)


def test_an_image_may_be_named_by_a_plain_string():
    parts = [{"type": "image_url", "image_url": "data:image/png;base64,AAAA"}]
    with visiting() as (_, web):
        answer = web.post(
            "/v1/chat/completions", json={"model": "mock", "messages": [{"role": "user", "content": parts}]}
        )
    assert "loaded without --vision" in answer.text  # it was read as an image


@pytest.mark.parametrize(
    ("given", "where"),
    [
        ("", "input"),
        (["a", ""], "input[1]"),
        ([""], "input"),
        ([[1], []], "input[1]"),
        ([[], [1]], "input[0]"),
    ],
)
def test_empty_texts_are_not_embedded(given, where):
    with visiting() as (_, web):
        answer = web.post("/v1/embeddings", json={"model": "mock", "input": given})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, where)


def test_ollama_loads_a_model_by_an_empty_embedding():
    with visiting() as (_, web):
        for given in ("", []):
            answer = web.post("/api/embed", json={"model": "mock", "input": given})
            assert (answer.status_code, answer.json()["embeddings"]) == (200, [])
        assert web.post("/api/embeddings", json={"model": "mock", "prompt": ""}).json() == {"embedding": []}


def test_unknown_options_of_ollama_are_left_out_and_told():
    asked = {"model": "mock", "stream": False, **CHAT}
    with visiting() as (_, web):
        known = web.post("/api/chat", json={**asked, "options": {"draft_num_predict": 4, "num_gpu": 1}})
        assert (known.status_code, known.headers.get("x-stretto-warning")) == (200, None)
        for options in ({"brand_new": 1, "temperature": 0}, {"brand_new\r\nx: é": {"a": []}}):
            answer = web.post("/api/chat", json={**asked, "options": options})
            assert answer.status_code == 200, answer.text
            assert "options.brand_new" in answer.headers["x-stretto-warning"]
            assert "x" not in answer.headers
            assert "left out" in answer.json()["warnings"][0]
        assert web.post("/api/chat", json={**asked, "options": {"temperature": "hot"}}).status_code == 400
        assert web.post("/api/chat", json={**asked, "brand_new": 1}).status_code == 400
    with visiting(strict=True) as (_, web):
        answer = web.post("/api/chat", json={**asked, "options": {"brand_new": 1}})
        assert (answer.status_code, "brand_new" in answer.text) == (400, True)
