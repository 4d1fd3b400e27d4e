"""The log: one line a request with what it took and how it ended, in every protocol; and a full disk."""

import errno
import json
import logging
import os

import httpx
import pytest

from serving import endless, mock, serving, until, visiting
from stretto import LLM
from stretto.backends.native import NativeBackend
from stretto.server.http.errors import translate
from stretto.server.http.guard import JsonLines, TextLines
from stretto.server.http.logs import ErrorStream
from stretto.testing import byte_tokenizer
from tiny_models import tiny_file, tiny_spec

PROMPT = "Once upon a time"
CHAT = [{"role": "user", "content": PROMPT}]
PROTOCOLS = {
    "/v1/completions": {"prompt": PROMPT, "max_tokens": 5},
    "/v1/chat/completions": {"messages": CHAT, "max_tokens": 5},
    "/v1/responses": {"input": PROMPT, "max_output_tokens": 16},
    "/v1/messages": {"messages": CHAT, "max_tokens": 5},
    "/api/generate": {"prompt": PROMPT, "options": {"num_predict": 5}},
    "/api/chat": {"messages": CHAT, "options": {"num_predict": 5}},
    "/completion": {"prompt": PROMPT, "n_predict": 5},
    "/chat/completions": {"messages": CHAT, "max_tokens": 5},
    "/stretto/parallel": {"prompt": PROMPT, "max_tokens": 5},
}


class Lines(logging.Handler):
    """Keeps the lines of requests, as JSON has them."""

    def __init__(self):
        super().__init__()
        self.setFormatter(JsonLines())
        self.found = []

    def emit(self, record):
        self.found.append(json.loads(self.format(record)))

    def of(self, path):
        """The line of the only request to a path, once it is there."""
        until(lambda: any(line.get("path") == path for line in self.found), 20)
        (line,) = [line for line in self.found if line.get("path") == path]
        return line


@pytest.fixture
def lines():
    """The lines of the server's log."""
    logger, handler = logging.getLogger("stretto.server"), Lines()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(level)


@pytest.fixture(scope="module")
def web():
    """A client of a server that logs, with one of several keys."""
    keys = {"api_keys": ("first", "second"), "admin_keys": ("boss",)}
    with visiting(endless(0.0), log="json", **keys) as (_, client):
        client.headers["authorization"] = "Bearer second"
        yield client


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", PROTOCOLS)
def test_a_request_is_one_line_in_every_protocol(web, lines, path, stream):
    web.post(path, json={"model": "mock", **PROTOCOLS[path], "stream": stream}).raise_for_status()
    line = lines.of(path)
    assert line["level"] == "info"
    assert (line["status"], line["model"], line["key"]) == (200, "mock", "key-2")
    assert line["prompt_tokens"] >= len(PROMPT)
    assert 0 <= line["cached_tokens"] < line["prompt_tokens"]
    assert line["completion_tokens"] == (16 if path == "/v1/responses" else 5)
    assert line["finish_reason"] == "length"
    assert 0 <= line["queued_ms"] <= line["first_token_ms"] <= line["ms"]
    assert "error" not in line
    assert "error_status" not in line


def test_a_refused_request_has_its_error(web, lines):
    web.post("/v1/completions", json={"model": "mock", "prompt": "a", "temperature": -1})
    line = lines.of("/v1/completions")
    assert (line["status"], line["error"], line["key"]) == (400, "invalid_value", "key-2")
    assert "temperature" in line["message"]
    web.get("/nothing")
    assert lines.of("/nothing")["error"] == "not_found"
    web.get("/v1/models", headers={"authorization": "Bearer wrong"})
    line = lines.of("/v1/models")
    assert (line["status"], line["error"]) == (401, "invalid_api_key")
    assert "key" not in line


def test_vectors_are_logged_with_their_tokens(lines):
    def open_model(entry):
        backend = NativeBackend(tiny_file("llama"), tiny_spec("llama"), 128, threads=1)
        return LLM(backend, byte_tokenizer())

    with visiting(open_model, log="json") as (_, client):
        client.post("/v1/embeddings", json={"model": "mock", "input": [1, 2, 3]}).raise_for_status()
    line = lines.of("/v1/embeddings")
    assert (line["model"], line["prompt_tokens"]) == ("mock", 3)


def test_a_response_in_the_background_has_a_line_when_it_has_ended(web, lines):
    body = {"model": "mock", "input": PROMPT, "max_output_tokens": 16, "background": True}
    web.post("/v1/responses", json=body).raise_for_status()
    until(lambda: len(lines.found) == 2)
    (line,) = [line for line in lines.found if line.get("background")]
    assert (line["completion_tokens"], line["finish_reason"], line["key"]) == (16, "length", "key-2")
    assert line["request"] == lines.found[0]["request"]


def test_a_stream_that_its_client_leaves_is_no_success(lines):
    body = {"model": "mock", "prompt": PROMPT, "stream": True}
    with visiting(endless(), log="json") as (_, client):
        with client.stream("POST", "/v1/completions", json=body) as answer:
            next(answer.iter_lines())
        line = lines.of("/v1/completions")
    assert (line["status"], line["error"], line["finish_reason"]) == (499, "client_gone", "cancelled")
    assert line["completion_tokens"] >= 1


@pytest.mark.parametrize("path", PROTOCOLS)
def test_a_stream_that_a_stop_cuts_is_no_success(lines, path):
    body = {"model": "mock", **PROTOCOLS[path], "stream": True}
    for name in ("max_tokens", "max_output_tokens", "n_predict", "options"):
        if name in body:
            body[name] = {"num_predict": 900} if name == "options" else 900
    with (
        serving(endless(0.02), log="json", grace_seconds=0.2) as running,
        httpx.Client(base_url=running.url, timeout=60) as client,
        client.stream("POST", path, json=body) as answer,
    ):
        pieces = answer.iter_bytes()
        next(pieces)
        running.server.end()
        for _ in pieces:
            pass
    line = lines.of(path)
    assert (line["status"], line["level"], line["error"]) == (503, "warning", "shutting_down")
    assert line["finish_reason"] == "cancelled"


# -- a full disk --


def record(text):
    """A record of the log."""
    return logging.LogRecord("stretto.server", logging.INFO, "", 0, text, (), None)


def test_lines_that_a_full_disk_loses_are_counted_and_told(tmp_path):
    path = tmp_path / "log"
    full, room = os.open("/dev/full", os.O_WRONLY), os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        handler = ErrorStream(TextLines(), full)
        for _ in range(3):
            handler.emit(record("lost"))
        assert handler.n_lost == 3
        os.dup2(room, full)  # there is room again
        handler.emit(record("kept"))
    finally:
        os.close(full)
        os.close(room)
    told, kept = path.read_text().splitlines()
    assert told.endswith("error 3 lines of the log were lost: the disk is full")
    assert kept.endswith("info kept")


def test_lost_lines_are_a_metric(monkeypatch):
    handler = ErrorStream(JsonLines())
    handler.n_lost = 7
    monkeypatch.setattr(logging.getLogger("stretto.server"), "handlers", [handler])
    with visiting() as (_, client):
        assert "stretto_log_lines_lost_total 7" in client.get("/metrics").text


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_named_in_answers(number):
    found = translate(OSError(number, "No space left on device", "/somewhere/file"))
    assert (found.status, found.code) == (503, "out_of_resources")
    assert found.message == "the disk of this server is full; its operator has to make room"


def test_a_batch_that_a_full_disk_ends_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("STRETTO_HOME", str(tmp_path))
    asked = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "a"}}
    with visiting(mock()) as (running, client):
        batches = running.server.guard.app.state.batches

        def fail(*_):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(batches.store, "append", fail)
        form = {"file": ("a.jsonl", json.dumps(asked).encode()), "purpose": (None, "batch")}
        file = client.post("/v1/files", files=form).json()["id"]
        body = {"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"}
        name = client.post("/v1/batches", json=body).json()["id"]
        until(lambda: client.get(f"/v1/batches/{name}").json()["status"] == "failed")
        errors = client.get(f"/v1/batches/{name}").json()["errors"]["data"]
    assert "the disk of this server is full" in errors[0]["message"]
