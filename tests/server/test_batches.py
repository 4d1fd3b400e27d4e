"""`/v1/files` and `/v1/batches`: by OpenAI's package, over restarts, for each key its own."""

import io
import json
import time

import openai
import pytest

from serving import HELLO, endless, mock, serving, until, visiting
from stretto.server.openai import batch_store
from stretto.server.settings import RequestLimits

CHAT = "/v1/chat/completions"
KEYS = {"api_keys": ("alice", "bob")}


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("STRETTO_HOME", str(tmp_path / "home"))


def line(name, url=CHAT, **body):
    body = {"model": "mock", "messages": [{"role": "user", "content": "Hi"}], "temperature": 0, **body}
    return {"custom_id": name, "method": "POST", "url": url, "body": body}


def jsonl(*lines):
    return "\n".join(json.dumps(one) for one in lines).encode()


def key(name="none"):
    return {"authorization": f"Bearer {name}"}


def sent(web, data, name="none", purpose="batch"):
    made = web.post(
        "/v1/files", files={"file": ("a.jsonl", data)}, data={"purpose": purpose}, headers=key(name)
    )
    assert made.status_code == 200, made.text
    return made.json()["id"]


def begun(web, data, name="none", url=CHAT):
    body = {"input_file_id": sent(web, data, name), "endpoint": url, "completion_window": "24h"}
    made = web.post("/v1/batches", json=body, headers=key(name))
    assert made.status_code == 200, made.text
    return made.json()


def status(web, batch, name="none"):
    return web.get(f"/v1/batches/{batch['id']}", headers=key(name)).json()


def ended(web, batch, name="none"):
    until(lambda: status(web, batch, name)["status"] in batch_store.ENDED)
    return status(web, batch, name)


def answers(web, batch, kind="output", name="none"):
    if batch[f"{kind}_file_id"] is None:
        return {}
    text = web.get(f"/v1/files/{batch[f'{kind}_file_id']}/content", headers=key(name)).text
    return {one["custom_id"]: one["response"] for one in map(json.loads, text.splitlines())}


def test_openais_package_runs_a_batch():
    with (
        serving() as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        data = jsonl(*(line(f"r{i}") for i in range(9)), line("wrong", temperature="hot"))
        file = client.files.create(file=io.BytesIO(data), purpose="batch")
        assert (file.bytes, file.purpose) == (len(data), "batch")
        made = client.batches.create(
            input_file_id=file.id, endpoint=CHAT, completion_window="24h", metadata={"a": "b"}
        )
        until(lambda: client.batches.retrieve(made.id).status == "completed")
        done = client.batches.retrieve(made.id)
        counted = done.request_counts
        assert (counted.total, counted.completed, counted.failed) == (10, 9, 1)
        assert done.metadata == {"a": "b"}
        rows = [json.loads(one) for one in client.files.content(done.output_file_id).text.splitlines()]
        assert sorted(row["custom_id"] for row in rows) == [f"r{i}" for i in range(9)]
        assert {row["response"]["body"]["choices"][0]["message"]["content"] for row in rows} == {HELLO}
        (failed,) = client.files.content(done.error_file_id).text.splitlines()
        assert json.loads(failed)["response"]["status_code"] == 400
        assert [one.id for one in client.batches.list()] == [made.id]
        assert {one.id for one in client.files.list()} == {file.id, done.output_file_id, done.error_file_id}
        assert [one.id for one in client.files.list(purpose="batch")] == [file.id]
        by_order = [[one.id for one in client.files.list(order=order)] for order in ("asc", "desc")]
        assert by_order[0] == by_order[1][::-1]
        with pytest.raises(openai.BadRequestError, match="order"):
            client.files.list(extra_query={"order": "up"})
        assert client.files.delete(file.id).deleted
        with pytest.raises(openai.NotFoundError):
            client.files.retrieve(file.id)


@pytest.mark.parametrize(
    ("url", "body"),
    [
        ("/v1/completions", {"prompt": "Hi"}),
        ("/v1/responses", {"input": "Hi"}),
        (CHAT, {"messages": [{"role": "user", "content": "Hi"}]}),
    ],
)
def test_every_endpoint_is_asked(url, body):
    with visiting() as (_, web):
        one = {"custom_id": "x", "method": "POST", "url": url, "body": {"model": "mock", **body}}
        found = answers(web, ended(web, begun(web, jsonl(one), url=url)))
        assert found["x"]["status_code"] == 200


WRONG = {
    b"": "empty",
    b"no json": "no JSON",
    b"[1]": "a line is an object",
    jsonl(line("a"), line("a")): "another line",
    jsonl(line("a", url="/v1/completions")): "method must be POST",
    jsonl(line("a", stream=True)): "not streamed",
    jsonl({**line("a"), "more": 1}): "no field of a line",
    jsonl({**line("a"), "custom_id": 7}): "custom_id must be",
    b"[" * 100_000: "no JSON that can be read",
}


@pytest.mark.parametrize("data", WRONG)
def test_a_file_that_is_wrong_fails(data):
    with visiting() as (_, web):
        made = begun(web, data)
        assert (made["status"], WRONG[data] in made["errors"]["data"][0]["message"]) == ("failed", True)
        assert web.delete(f"/v1/batches/{made['id']}").json()["deleted"]
        assert web.get(f"/v1/batches/{made['id']}").status_code == 404


def test_a_batch_goes_on_after_a_restart():
    data = jsonl(*(line(f"r{i}") for i in range(40)))
    with visiting(mock(seconds=0.005)) as (_, web):
        made = begun(web, data)
        until(lambda: status(web, made)["request_counts"]["completed"] >= 3)
    with visiting() as (server, web):
        folder = server.server.guard.app.state.batches.store.home / "nobody"
        done = ended(web, made)
        assert done["status"] == "completed"
        assert done["request_counts"] == {"total": 40, "completed": 40, "failed": 0}
        text = web.get(f"/v1/files/{done['output_file_id']}/content").text
        names = [json.loads(one)["custom_id"] for one in text.splitlines()]
        assert sorted(names) == sorted(f"r{i}" for i in range(40))  # each once
        assert not list(folder.glob("*.output"))


def test_a_line_that_a_crash_has_cut_is_asked_again():
    with serving() as server:
        store = server.server.guard.app.state.batches.store
        store.write("x", {"id": "batch-" + "0" * 24, "created_at": 1})
        path = store.path("x", "batch-" + "0" * 24, "output")
        path.write_bytes(b'{"custom_id": "a"}\n{"custom_id": "b"}\n{"custom_i')
        assert store.read_answered("x", "batch-" + "0" * 24) == {"output": {"a", "b"}, "error": set()}
        assert path.read_bytes().endswith(b'"b"}\n')


def test_a_batch_is_cancelled_and_keeps_what_it_has():
    with visiting(endless()) as (server, web):
        data = jsonl(line("short", max_tokens=3), *(line(f"r{i}", max_tokens=100_000) for i in range(9)))
        made = begun(web, data)
        until(lambda: status(web, made)["request_counts"]["completed"] == 1)
        assert web.delete(f"/v1/files/{made['input_file_id']}").status_code == 409
        assert web.delete(f"/v1/batches/{made['id']}").status_code == 409
        assert web.post(f"/v1/batches/{made['id']}/cancel").json()["status"] == "cancelling"
        done = ended(web, made)
        assert done["status"] == "cancelled"
        assert list(answers(web, done)) == ["short"]
        assert done["error_file_id"] is None
        until(lambda: not server.state.generations)  # lines that were running have ended


def test_a_caller_sees_its_own_only():
    with visiting(**KEYS) as (_, web):
        made = begun(web, jsonl(line("a")), "alice")
        done = ended(web, made, "alice")
        assert answers(web, done, name="alice")
        for path in (f"/v1/batches/{made['id']}", f"/v1/files/{made['input_file_id']}"):
            assert web.get(path, headers=key("bob")).status_code == 404
            assert web.delete(path, headers=key("bob")).status_code == 404
        assert web.post(f"/v1/batches/{made['id']}/cancel", headers=key("bob")).status_code == 404
        assert web.get(f"/v1/files/{done['output_file_id']}/content", headers=key("bob")).status_code == 404
        stolen = {"input_file_id": made["input_file_id"], "endpoint": CHAT, "completion_window": "24h"}
        assert web.post("/v1/batches", json=stolen, headers=key("bob")).status_code == 404
        assert web.get("/v1/files", headers=key("bob")).json()["data"] == []
        for wrong in ("file-..%2F..%2Fsecret", "..%2fsecret", "file-" + "0" * 24):
            assert web.get(f"/v1/files/{wrong}/content", headers=key("bob")).status_code == 404
    with visiting(**KEYS) as (_, web):  # a key stays the same caller after a restart
        assert status(web, made, "alice")["status"] == "completed"
        assert web.get(f"/v1/batches/{made['id']}", headers=key("bob")).status_code == 404


def test_quotas_and_expiry(monkeypatch):
    limits = RequestLimits(files=2, file_bytes=1000, batches=1)
    with visiting(endless(), limits=limits) as (_, web):
        sent(web, b"x" * 600)

        def refused(data):
            return web.post("/v1/files", files={"file": ("a", data)}, data={"purpose": "batch"})

        assert refused(b"x" * 600).status_code == 413
        made = begun(web, jsonl(line("a", max_tokens=100_000)))
        assert refused(b"x").json()["error"]["code"] == "over_quota"
        body = {"input_file_id": made["input_file_id"], "endpoint": CHAT, "completion_window": "24h"}
        assert web.post("/v1/batches", json=body).status_code == 429
        later = time.time() + 31 * 86400
        monkeypatch.setattr(batch_store.time, "time", lambda: later)
        assert web.get("/v1/files").json()["data"] == []


@pytest.mark.parametrize("seconds", ["", "3599", "2592001", "-1", "4e3", "²", "9" * 5000])
def test_a_time_of_expiry_that_cannot_be(seconds):
    with visiting() as (_, web):
        form = {"purpose": "batch", "expires_after[seconds]": seconds}
        answer = web.post("/v1/files", files={"file": ("a", b"{}")}, data=form)
        assert answer.status_code == 400
        assert "from 3600 to 2592000" in answer.json()["error"]["message"]


def test_batches_give_way_to_live_requests(monkeypatch):
    seen = []
    with visiting() as (server, web):
        web.post(CHAT, json=line("x")["body"])
        llm = server.llm()
        plain = llm.astream_many
        monkeypatch.setattr(
            llm, "astream_many", lambda *a, **b: seen.append(b.get("priority", 0)) or plain(*a, **b)
        )
        ended(web, begun(web, jsonl(line("a"))))
        web.post(CHAT, json=line("x")["body"])
    assert seen[0] < 0
    assert seen[1] == 0


def test_forms_that_are_wrong():
    with visiting() as (_, web):
        file = {"file": ("a", b"x")}
        assert web.post("/v1/files", files=file, data={"purpose": "assistants"}).status_code == 400
        assert web.post("/v1/files", files=file, data={"purpose": "batch", "more": "1"}).status_code == 400
        assert web.post("/v1/files", json={"purpose": "batch"}).status_code == 400
        body = {"input_file_id": "file-1", "endpoint": "/v1/nothing", "completion_window": "24h"}
        assert web.post("/v1/batches", json=body).status_code == 400
