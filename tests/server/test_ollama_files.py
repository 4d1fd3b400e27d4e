"""`/api/blobs`, and `/api/create` from files and with `quantize`: models that Ollama's clients bring."""

import hashlib
import json
import os
import socket
import threading
import time

import httpx
import ollama
import pytest

from serving import HELLO, TINY, mock, serving, until, visiting
from stretto.server.ollama import create
from stretto.server.ollama.store import Blobs, MadeModels
from stretto.server.settings import RequestLimits
from stretto.weights import hub
from stretto.weights.gguf import GGUF

DATA = TINY.read_bytes()
DIGEST = f"sha256:{hashlib.sha256(DATA).hexdigest()}"
BLOB = f"/api/blobs/{DIGEST}"
FILES = {"files": {"tiny.gguf": DIGEST}, "stream": False}


@pytest.fixture
def web(store_home):
    with visiting(mock(HELLO)) as (server, client):
        client.server, client.home = server, store_home
        yield client


def left_in(home):
    """The names of files in the folder of blobs."""
    folder = home / "blobs"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_a_file_is_sent_and_made_a_model_that_ollamas_package_uses(store_home):
    with serving(mock(HELLO)) as server:
        client = ollama.Client(host=server.url)
        digest = client.create_blob(TINY)
        assert digest == DIGEST
        assert client.create_blob(TINY) == DIGEST  # it is here already
        made = client.create(
            model="Brought:v1", files={"tiny.gguf": digest}, system="S", parameters={"num_predict": 3}
        )
        assert made.status == "success"
        assert {one.model for one in client.list().models} == {"mock:latest", "Brought:v1"}
        assert client.generate(model="Brought:v1", prompt="Hi").eval_count == 3
        assert "S" in client.show("Brought:v1").modelfile
        (stored,) = hub.models()
        assert (stored.name, stored.sha256) == ("brought-v1", DIGEST.removeprefix("sha256:"))
        assert stored.path.samefile(store_home / "blobs" / DIGEST.replace(":", "-"))  # not copied
        assert client.delete("Brought:v1").status == "success"
        assert (hub.models(), server.state.part(MadeModels).all()) == ([], {})
        assert {one.model for one in client.list().models} == {"mock:latest"}
        client.close()


def test_weights_are_quantised(web):
    assert web.post(BLOB, content=DATA).status_code == 201
    answer = web.post("/api/create", json={"model": "small", **FILES, "quantize": "Q8_0"})
    assert answer.json() == {"status": "success"}, answer.text
    again = web.post("/api/create", json={"model": "other", "from": "mock", "quantize": "q8_0"})
    lines = [json.loads(line) for line in again.text.splitlines()]
    assert (lines[0], lines[-1]) == ({"status": "parsing GGUF"}, {"status": "success"})
    for model in hub.models():
        assert model.sha256 == hashlib.sha256(model.path.read_bytes()).hexdigest()
        with GGUF(model.path) as file:
            assert "Q8_0" in {tensor.format.name for tensor in file.tensors.values()}
    twice = web.post("/api/create", json={"model": "x", "from": "small", "quantize": "q4_0", "stream": False})
    assert twice.status_code == 400
    assert "lose twice" in twice.json()["error"]
    assert "allow_requantize" not in twice.json()["error"]  # no field of this endpoint
    assert {model.name for model in hub.models()} == {"small", "other"}
    assert list(web.server.state.registry.models) == ["mock", "small", "other"]


def test_weights_replace_an_older_model_of_their_name(web):
    older = {"model": "new", "from": "mock", "system": "OLD", "stream": False}
    assert web.post("/api/create", json=older).json() == {"status": "success"}
    assert web.post(BLOB, content=DATA).status_code == 201
    assert web.post("/api/create", json={"model": "new", **FILES}).json() == {"status": "success"}
    shown = web.post("/api/show", json={"model": "new"}).json()
    assert "OLD" not in shown["modelfile"]
    assert shown["details"]["parent_model"] == ""
    assert web.server.state.part(MadeModels).all() == {}


@pytest.mark.parametrize("quantize", [None, "q8_0"])
def test_two_models_never_share_a_stored_name(web, quantize):
    assert web.post(BLOB, content=DATA).status_code == 201
    assert web.post("/api/create", json={"model": "A:b", **FILES}).json() == {"status": "success"}
    answer = web.post("/api/create", json={"model": "a-b", **FILES, "quantize": quantize})
    assert answer.status_code == 409, answer.text
    assert "A:b" in answer.json()["error"]
    assert [model.name for model in hub.models()] == ["a-b"]
    assert web.post("/api/create", json={"model": "A:b", **FILES}).status_code == 409


def test_a_deleted_model_leaves_the_file_that_another_one_has(web):
    assert web.post(BLOB, content=DATA).status_code == 201
    assert web.post("/api/create", json={"model": "one", **FILES}).json() == {"status": "success"}
    asked = {"model": "one", "name": "two", "backend": "native"}
    assert web.post("/stretto/models/copy", json=asked).status_code == 200
    assert web.request("DELETE", "/api/delete", json={"model": "two"}).status_code == 200
    assert [model.name for model in hub.models()] == ["one"]
    assert web.request("DELETE", "/api/delete", json={"model": "one"}).status_code == 200
    assert hub.models() == []


def test_a_client_that_leaves_while_a_model_is_made_leaves_none(web, monkeypatch):
    goes_on, link = threading.Event(), create.link
    monkeypatch.setattr(create, "link", lambda *paths: (goes_on.wait(30), link(*paths)))
    assert web.post(BLOB, content=DATA).status_code == 201
    with web.stream("POST", "/api/create", json={"model": "new", **FILES, "stream": True}) as answer:
        assert json.loads(next(answer.iter_lines())) == {"status": "parsing GGUF"}
    pull = web.server.state.pull
    until(pull.stopped.is_set)
    goes_on.set()
    until(lambda: web.server.state.pull is None)
    assert hub.models() == []
    assert list(web.server.state.registry.models) == ["mock"]


def test_a_modelfile_may_name_a_file(web):
    assert web.post(BLOB, content=DATA).status_code == 201
    asked = {"name": "old", "modelfile": f"FROM @{DIGEST}\nSYSTEM S", "stream": False}
    assert web.post("/api/create", json=asked).json() == {"status": "success"}
    assert web.post("/api/show", json={"name": "old"}).json()["system"] == "S"


def test_head_says_whether_a_file_is_here(web):
    assert web.head(BLOB).status_code == 404
    assert web.post(BLOB, content=DATA).status_code == 201
    assert web.head(BLOB).status_code == 200
    assert web.post(BLOB, content=DATA).status_code == 200
    assert web.head("/api/blobs/sha256:xyz").status_code == 400


@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_body_that_is_another_leaves_nothing(web, is_chunked):
    wrong = DATA[:-1] + b"?"
    answer = web.post(BLOB, content=(iter([wrong[:1000], wrong[1000:]]) if is_chunked else wrong))
    assert answer.status_code == 400
    assert "digest" in answer.json()["error"]
    assert left_in(web.home) == []
    assert web.post("/api/blobs/sha256:..%2F..%2Fx", content=b"x").status_code in (400, 404)


@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_file_that_is_too_large_is_refused(store_home, is_chunked):
    with visiting(mock(HELLO), limits=RequestLimits(blob=5000)) as (_, web):
        pieces = (DATA[at : at + 1000] for at in range(0, 6000, 1000))
        try:
            answer = web.post(BLOB, content=pieces if is_chunked else DATA)
            assert answer.status_code == 413
        except httpx.WriteError:
            assert is_chunked  # the connection is closed while the client still sends
        assert left_in(store_home) == []
        assert web.post(f"/api/blobs/{DIGEST}", content=b"x").status_code == 400


def test_a_client_that_leaves_or_stops_leaves_nothing(store_home):
    with serving(mock(HELLO), limits=RequestLimits(body_seconds=0.5)) as server:
        head = f"POST {BLOB} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(DATA)}\r\n\r\n".encode()
        for stays in (False, True):
            with socket.create_connection(("127.0.0.1", server.port)) as client:
                client.sendall(head + DATA[:100])
                until(lambda: left_in(store_home))
                if stays:
                    assert b" 408 " in client.recv(100)
            until(lambda: not left_in(store_home))
            until(lambda: server.state.part(Blobs).n_uploads == 0)


def test_files_that_no_model_uses_are_removed_after_some_days(web):
    folder = web.home / "blobs"
    folder.mkdir(parents=True)
    for name in ("sha256-old", ".old.part", "sha256-used", "sha256-new"):
        (folder / name).write_bytes(b"x")
    os.link(folder / "sha256-used", web.home / "used")
    past = time.time() - 15 * 86400
    for name in ("sha256-old", ".old.part", "sha256-used"):
        os.utime(folder / name, (past, past))
    assert web.post(BLOB, content=DATA).status_code == 201
    assert left_in(web.home) == sorted(["sha256-used", "sha256-new", DIGEST.replace(":", "-")])


@pytest.mark.parametrize(
    ("fields", "status", "words"),
    [
        ({"files": {}}, 400, "files"),
        ({"files": {"a": "x"}}, 400, "files: 'x' is no digest"),
        ({"files": None, "from": "@sha256:x"}, 400, "from: 'sha256:x' is no digest"),
        ({"files": None, "from": f"@sha256:{'0' * 64}"}, 400, "from: there is no file"),
        ({"from": "mock", "files": None, "system": "x" * (1 << 20)}, 400, "at most 1,048,576"),
        ({"files": {"a": f"sha256:{'0' * 64}"}}, 400, "POST /api/blobs/"),
        ({"files": {"a": DIGEST, "b": DIGEST}}, 400, "--vision"),
        ({"from": "mock"}, 400, "give one"),
        ({"quantize": "q4_x"}, 400, "quantize"),
        ({"adapters": {"a": DIGEST}}, 400, "adapters"),
        ({"model": "smollm2"}, 409, "another name"),
        ({"model": "mock"}, 409, "another"),
        ({"model": "../x"}, 400, "no name"),
        ({"model": "x.gguf"}, 400, "ending"),
        ({"model": "a" * 64 + ":" + "b" * 64}, 400, "shorter"),
    ],
)
def test_what_cannot_be_made_is_refused(web, fields, status, words):
    assert web.post(BLOB, content=DATA).status_code == 201
    answer = web.post("/api/create", json={"model": "new", **FILES, **fields})
    assert answer.status_code == status, answer.text
    assert words in answer.json()["error"]
    assert hub.models() == []


def test_a_file_that_is_no_model_is_refused(web):
    digest = f"sha256:{hashlib.sha256(b'no model').hexdigest()}"
    assert web.post(f"/api/blobs/{digest}", content=b"no model").status_code == 201
    answer = web.post("/api/create", json={"model": "new", "files": {"a": digest}, "stream": False})
    assert answer.status_code == 400
    assert "no GGUF file" in answer.json()["error"]
    assert web.server.state.pull is None


def test_a_model_that_cannot_fit_is_not_kept(store_home):
    with visiting(mock(HELLO), memory=1 << 40) as (server, web):
        assert web.post(BLOB, content=DATA).status_code == 201
        server.state.registry.limit = 1
        answer = web.post("/api/create", json={"model": "new", **FILES})
        assert answer.status_code == 400
        assert "cannot fit" in answer.json()["error"]
        assert hub.models() == []


@pytest.mark.parametrize("method", ["HEAD", "POST"])
def test_files_need_an_admin_key(store_home, method):
    with visiting(mock(HELLO), api_keys=("ann",), admin_keys=("boss",)) as (_, web):
        answer = web.request(method, BLOB, headers={"authorization": "Bearer ann"})
        assert answer.status_code == 403
        assert left_in(store_home) == []
        answer = web.request(method, BLOB, headers={"authorization": "Bearer boss"}, content=b"")
        assert answer.status_code == (404 if method == "HEAD" else 400)
