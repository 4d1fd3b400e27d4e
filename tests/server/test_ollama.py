"""Ollama's endpoints: its own package, and the requests of its API document."""

import json
from contextlib import contextmanager

import httpx
import ollama
import pytest

import stretto
from serving import HELLO, TINY, mock, serving
from stretto.server.ollama.store import MadeModels
from stretto.weights import hub


@pytest.fixture(scope="module")
def server():
    with serving(mock(HELLO)) as running:
        yield running


@pytest.fixture(scope="module")
def client(server):
    made = ollama.Client(host=server.url)
    yield made
    made.close()


@contextmanager
def by_hand(server, **headers):
    with httpx.Client(base_url=server.url, headers=headers, timeout=60) as web:
        yield web


def lines(answer):
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.text.splitlines()]


def test_the_server_says_that_it_is_there(server):
    with by_hand(server) as web:
        assert web.head("/").status_code == 200
        version = web.get("/api/version").json()["version"]
    assert tuple(map(int, version.split("."))) >= (0, 6, 4)  # that clients ask for


def test_loaded_models_are_listed(client):
    client.generate(model="mock", prompt="Hi")
    (running,) = client.ps().models
    assert running.model == "mock:latest"
    assert running.size > 0
    assert running.expires_at.year > 2100


def test_a_model_is_shown_by_either_name(server):
    with by_hand(server) as web:
        shown = [web.post("/api/show", json={key: "mock"}).json() for key in ("model", "name")]
        assert shown[0] == shown[1]
        assert web.post("/api/show", json={}).status_code == 400
    assert shown[0]["model_info"]["general.architecture"] == "llama"
    assert shown[0]["model_info"]["general.parameter_count"] > 0


def test_capabilities_are_those_of_the_model(client):
    assert set(client.show("mock").capabilities) <= {"completion", "embedding", "tools", "thinking"}
    assert "insert" not in client.show("mock").capabilities


def test_a_model_is_made_copied_used_and_deleted(client, server):
    client.create(
        model="mario", from_="mock", system="You are Mario.", parameters={"temperature": 0, "num_predict": 2}
    )
    assert {one.model for one in client.list().models} == {"mock:latest", "mario:latest"}
    shown = client.show("mario")
    assert "You are Mario." in shown.modelfile
    assert shown.details.parent_model == "mock"
    short = client.generate(model="mario", prompt="Hi")
    assert short.eval_count == 2
    long = client.generate(model="mario", prompt="Hi", options={"num_predict": 3})
    assert long.eval_count == 3
    plain = client.chat(model="mock", messages=[{"role": "user", "content": "Hi"}])
    made = client.chat(model="mario:latest", messages=[{"role": "user", "content": "Hi"}])
    assert made.prompt_eval_count > plain.prompt_eval_count  # the system message
    client.copy("mario", "luigi")
    assert client.generate(model="luigi", prompt="Hi").eval_count == 2
    stored = server.state.part(MadeModels)._folder()
    assert sorted(path.name for path in stored.iterdir()) == ["luigi.json", "mario.json"]
    assert client.delete("mario").status == "success"
    assert client.delete("luigi").status == "success"
    with pytest.raises(ollama.ResponseError, match="no model"):
        client.generate(model="mario", prompt="Hi")


def test_made_models_are_there_after_a_restart():
    with serving(mock(HELLO)) as first, by_hand(first) as web:
        made = {"model": "kept", "from": "mock", "system": "S", "stream": False}
        assert web.post("/api/create", json=made).json() == {"status": "success"}
    with serving(mock(HELLO)) as second, by_hand(second) as web:
        assert web.post("/api/show", json={"model": "kept"}).json()["system"] == "S"
        assert web.request("DELETE", "/api/delete", json={"model": "kept"}).status_code == 200


def test_progress_of_making_is_lines(client):
    statuses = [one.status for one in client.create(model="lined", from_="mock", stream=True)]
    client.delete("lined")
    assert statuses[-1] == "success"


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/api/create", {"model": "m", "from": "mock"}),
        ("POST", "/api/copy", {"source": "mock", "destination": "m"}),
        ("DELETE", "/api/delete", {"model": "mock"}),
        ("POST", "/api/pull", {"model": "smollm2"}),
    ],
)
def test_administration_needs_an_admin_key(method, path, body):
    with (
        serving(mock(HELLO), api_keys=("ann",), admin_keys=("boss",)) as server,
        by_hand(server, authorization="Bearer ann") as web,
    ):
        assert web.request(method, path, json=body).status_code == 403


def test_what_is_not_ours_is_not_deleted_or_replaced(server):
    with by_hand(server) as web:
        assert web.request("DELETE", "/api/delete", json={"model": "mock"}).status_code == 409
        assert web.request("DELETE", "/api/delete", json={"name": "nobody"}).status_code == 404
        assert web.post("/api/create", json={"model": "mock", "from": "mock"}).status_code == 409
        assert web.post("/api/create", json={"model": "../x", "from": "mock"}).status_code == 400
        assert web.post("/api/create", json={"model": "x", "from": "nobody"}).status_code == 404
        assert web.post("/api/create", json={"model": "x", "files": {}}).status_code == 400


def test_a_model_is_pulled_with_progress(client, server, monkeypatch):
    def pull(source, *, progress, **others):
        progress(50, 100, "model.gguf")
        return TINY

    monkeypatch.setattr(hub, "pull", pull)
    monkeypatch.setattr(hub, "resolve", lambda source, *others, **more: TINY)
    statuses = list(client.pull("smollm2", stream=True))
    assert statuses[0].status == "pulling manifest"
    assert statuses[-1].status == "success"
    assert client.pull("smollm2").status == "success"  # it is here already
    with pytest.raises(ollama.ResponseError, match="no model"):
        client.pull("nothing-of-that-name")
    client.delete("smollm2")
    assert "smollm2" not in server.state.registry.models


def test_embeddings_of_both_forms(smollm2_path):
    with serving(lambda entry: stretto.load(smollm2_path, cells=512)) as server, by_hand(server) as web:
        texts = ["Why is the sky blue?", "Why is the grass green?"]
        new = web.post("/api/embed", json={"model": "mock", "input": texts}).json()["embeddings"]
        one = web.post("/api/embed", json={"model": "mock", "input": texts[0]}).json()["embeddings"]
        old = web.post("/api/embeddings", json={"model": "mock", "prompt": texts[0]}).json()["embedding"]
    norm = sum(x * x for x in old) ** 0.5
    assert norm > 1.1  # it is not of length 1, as Ollama's is not
    assert [x / norm for x in old] == pytest.approx(new[0], abs=1e-4)
    assert (len(new), len(one)) == (2, 1)


def test_log_probabilities(client):
    whole = client.generate(model="mock", prompt="Hi", logprobs=True, top_logprobs=2)
    assert len(whole.logprobs) >= whole.eval_count - 1
    assert len(whole.logprobs[0].top_logprobs) == 2
    assert whole.logprobs[0].token == HELLO[: len(whole.logprobs[0].token)]
    message = {"role": "user", "content": "Hi"}
    pieces = list(client.chat(model="mock", messages=[message], logprobs=True, stream=True))
    assert pieces[0].logprobs[0].logprob <= 0
    assert not client.generate(model="mock", prompt="Hi").logprobs


def test_the_context_goes_on(client):
    first = client.generate(model="mock", prompt="Hi")
    assert len(first.context) == first.prompt_eval_count + first.eval_count or first.context
    second = client.generate(model="mock", prompt="And?", context=first.context)
    assert second.prompt_eval_count > first.prompt_eval_count


def test_a_template_of_the_request(client):
    asked = client.generate(model="mock", prompt="abc", system="", template="{{ .Prompt }}")
    raw = client.generate(model="mock", prompt="abc", raw=True)
    assert asked.prompt_eval_count == raw.prompt_eval_count
    with pytest.raises(ollama.ResponseError, match="range"):
        client.generate(model="mock", prompt="abc", template="{{ range .Messages }}{{ end }}")


def test_a_suffix_needs_a_model_that_fills_gaps(client):
    with pytest.raises(ollama.ResponseError, match="fill-in-the-middle"):
        client.generate(model="mock", prompt="def f(", suffix=")")


NEUTRAL = {
    "num_keep": 5,
    "seed": 42,
    "num_predict": 4,
    "top_k": 20,
    "top_p": 0.9,
    "min_p": 0.0,
    "typical_p": 1.0,
    "repeat_last_n": -1,
    "temperature": 0.8,
    "repeat_penalty": 1.2,
    "presence_penalty": 1.5,
    "frequency_penalty": 1.0,
    "mirostat": 0,
    "penalize_newline": True,
    "stop": ["\n", "user:"],
    "numa": False,
    "num_ctx": 64,
    "num_batch": 2,
    "num_gpu": 1,
    "main_gpu": 0,
    "use_mmap": True,
    "num_thread": 8,
}


def test_options_without_meaning_here_are_accepted(client):
    assert client.generate(model="mock", prompt="Hi", options=NEUTRAL).eval_count == 4


@pytest.mark.parametrize(
    "options",
    [{"mirostat": 2}, {"typical_p": 0.5}, {"tfs_z": 0.5}, {"repeat_last_n": 8, "repeat_penalty": 1.3}],
)
def test_options_that_would_change_the_answer_are_refused(client, options):
    with pytest.raises(ollama.ResponseError, match=next(iter(options))):
        client.generate(model="mock", prompt="Hi", options=options)


MESSAGES = [{"role": "user", "content": "why is the sky blue?"}]
DOCUMENTED = [
    ("/api/generate", {"prompt": "Why is the sky blue?"}),
    ("/api/generate", {"prompt": "Why is the sky blue?", "stream": False}),
    ("/api/generate", {"prompt": "[INST] why? [/INST]", "raw": True, "stream": False}),
    ("/api/generate", {"prompt": "Hi", "options": {"seed": 123}, "raw": True, "stream": False}),
    ("/api/generate", {"prompt": "Hi", "options": NEUTRAL, "stream": False}),
    ("/api/generate", {}),
    ("/api/generate", {"keep_alive": 0}),
    ("/api/chat", {"messages": MESSAGES}),
    ("/api/chat", {"messages": MESSAGES, "stream": False}),
    ("/api/chat", {"messages": MESSAGES, "options": {"seed": 101, "temperature": 0}}),
    ("/api/chat", {"messages": [*MESSAGES, {"role": "assistant", "content": "x"}, *MESSAGES]}),
    ("/api/chat", {"messages": []}),
    ("/api/chat", {"messages": [], "keep_alive": 0}),
    ("/api/show", {}),
]


@pytest.mark.parametrize(("path", "body"), DOCUMENTED, ids=str)
def test_the_requests_of_the_document(server, path, body):
    with by_hand(server) as web:
        found = lines(web.post(path, json={"model": "mock", **body}))
    assert "error" not in found[-1]
    if path in ("/api/generate", "/api/chat"):
        assert found[-1]["done"]
