"""One answer for all replicas, made of those of each."""

import asyncio
import json
from contextlib import aclosing

import httpx
import pytest

from serving import TINY, endless, mock
from stretto.deploy.peers import Peers, answer_request, merge_metrics, sum_statistics
from stretto.server.app import create_app
from stretto.server.generation.streams import get_streams
from stretto.server.http.streaming import open_app
from stretto.server.settings import ModelEntry, Settings

KEYS = {"api_keys": ("one", "two"), "admin_keys": ("root",)}


class Fleet:
    """Replicas in one process: apps that ask each other."""

    def __init__(self, n=2, opener=None, **settings):
        entry = ModelEntry.parse(f"mock={TINY}")
        made = Settings((entry,), port=0, memory=1 << 40, **settings)
        self.guards = [create_app(made, opener or mock()) for _ in range(n)]
        for number, guard in enumerate(self.guards):
            guard.state.labels = {"replica": f"r{number}"}
        self.dead = set()

    async def ask(self, request):
        alive = [(n, guard) for n, guard in enumerate(self.guards) if n not in self.dead]
        return [await answer_request(guard, request, f"r{n}") for n, guard in alive]

    async def relay(self, replica, request):
        number = int(replica.removeprefix("r"))
        async with aclosing(open_app(self.guards[number], request)) as messages:
            async for message in messages:
                if number in self.dead:
                    raise ConnectionError("the replica is gone")
                yield message

    def app(self, number):
        return Peers(self.guards[number], self.ask, self.relay)

    def open(self, number, method, path, **headers):
        """The messages of an answer as they come; closing it is a client that leaves."""
        named = [(name.encode(), value.encode()) for name, value in {"host": "127.0.0.1", **headers}.items()]
        path, _, query = path.partition("?")
        scope = {"method": method, "path": path, "query_string": query.encode(), "headers": named}
        return aclosing(open_app(self.app(number), scope))

    def client(self, number, **headers):
        transport = httpx.ASGITransport(self.app(number))
        return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=headers)


def run(coroutine):
    return asyncio.run(coroutine)


def respond(fleet, number, **headers):
    async def ask():
        async with fleet.client(number, **headers) as web:
            return (await web.post("/v1/responses", json={"model": "mock", "input": "hi"})).json()["id"]

    return ask()


def test_a_response_is_found_by_any_replica_and_forgotten_by_all():
    async def story():
        fleet = Fleet()
        name = await respond(fleet, 0)
        async with fleet.client(1) as web:
            found = await web.get(f"/v1/responses/{name}")
            gone = await web.delete(f"/v1/responses/{name}")
        async with fleet.client(0) as web:
            after = await web.get(f"/v1/responses/{name}")
        return found, gone, after, name

    found, gone, after, name = run(story())
    assert (found.status_code, found.json()["id"]) == (200, name)
    assert gone.json()["deleted"] is True
    assert (after.status_code, after.json()["error"]["code"]) == (404, "not_found")


def test_a_response_of_another_key_is_found_by_no_replica():
    async def story():
        fleet = Fleet(**KEYS)
        name = await respond(fleet, 0, authorization="Bearer one")
        answers = []
        for key in ("two", "one", "wrong"):
            async with fleet.client(1, authorization=f"Bearer {key}") as web:
                answers.append((await web.get(f"/v1/responses/{name}")).status_code)
        return answers

    assert run(story()) == [404, 200, 401]


def test_metrics_and_statistics_are_those_of_all_replicas():
    async def story():
        fleet = Fleet(3)
        await respond(fleet, 2)
        async with fleet.client(1) as web:
            return (await web.get("/metrics")).text, (await web.get("/stretto/replicas")).json()

    text, facts = run(story())
    assert text.count("# TYPE stretto_http_active gauge") == 1
    assert sum(line.startswith("stretto_http_active{") for line in text.splitlines()) == 3
    assert 'stretto_added_total{replica="r2",model="mock"} 1' in text
    assert list(facts["replicas"]) == ["r0", "r1", "r2"]
    assert list(facts["sums"]) == ["all", "r0", "r1", "r2"]
    assert facts["sums"]["all"]["cells"] == facts["sums"]["r2"]["cells"] > 0
    assert facts["n"] == 3


def test_statistics_need_a_key_where_there_are_keys():
    async def story():
        async with Fleet(**KEYS).client(0) as web:
            return [
                (await web.get(path)).status_code
                for path in ("/metrics", "/stretto/replicas", "/stretto/requests")
            ]

    assert run(story()) == [401, 401, 401]


def test_requests_of_all_replicas_are_listed_together():
    async def story():
        async with Fleet().client(0) as web:
            return (await web.get("/stretto/requests")).json()

    assert run(story()) == {"requests": []}


def test_replicas_that_do_not_answer_are_left_out():
    async def story():
        fleet = Fleet(2)
        fleet.dead = {0, 1}
        async with fleet.client(0) as web:
            alone = await web.get("/metrics")
        fleet.dead = {1}
        async with fleet.client(0) as web:
            return alone, (await web.get("/stretto/replicas")).json()

    alone, facts = run(story())
    assert 'replica="r0"' in alone.text
    assert facts["n"] == 1


def test_requests_that_generate_are_never_sent_on():
    asked = []

    async def story():
        fleet = Fleet()
        fleet.ask = lambda request: asked.append(request)
        return await respond(fleet, 0)

    assert run(story()).startswith("resp_")
    assert asked == []


CHAT = {"model": "mock", "messages": [{"role": "user", "content": "Hi"}], "temperature": 0, "stream": True}


async def begin(fleet, number, tokens, **headers):
    """A resumable answer whose client leaves after its head: the answer's id."""
    body = {**CHAT, "max_tokens": tokens, "resumable": True}
    async with fleet.client(number, **headers) as web:
        answer = asyncio.create_task(web.post("/v1/chat/completions", json=body))
        while not (streams := get_streams(fleet.guards[number].state)):
            await asyncio.sleep(0.001)
        ((_, name),) = streams
        await asyncio.sleep(0.05)
        answer.cancel()
    return name


async def texts_of(messages, enough=None):
    """The status of an answer and its body, or so many events of it."""
    status, text = 0, b""
    async for message in messages:
        status = message.get("status", status)
        text += message.get("body", b"")
        if enough is not None and text.count(b"\n\n") >= enough:
            break
    return status, text.decode()


def test_a_stream_is_read_on_at_any_replica_by_its_key_alone():
    async def story():
        fleet = Fleet(3, **KEYS)
        name = await begin(fleet, 1, 20, authorization="Bearer one")
        found = {}
        for number, key in ((0, "two"), (2, "root"), (0, "wrong"), (0, "one"), (1, "one"), (2, "one")):
            async with fleet.open(
                number, "GET", f"/stretto/streams/{name}?after=3", authorization=f"Bearer {key}"
            ) as messages:
                found[number, key] = await texts_of(messages)
        async with fleet.open(
            0, "GET", f"/stretto/streams/{name}?after=900", authorization="Bearer one"
        ) as it:
            beyond = await texts_of(it)
        return found, beyond

    found, (status, text) = run(story())
    assert [found[0, "two"][0], found[2, "root"][0], found[0, "wrong"][0]] == [404, 404, 401]
    assert found[0, "one"] == found[1, "one"] == found[2, "one"]
    assert found[0, "one"][1].startswith("id: 4\n")
    assert found[0, "one"][1].endswith("data: [DONE]\n\n")
    assert (status, json.loads(text)["error"]["param"]) == (400, "after")


def test_a_stream_is_taken_over_and_left_through_another_replica():
    async def story():
        fleet = Fleet(opener=endless())
        name = await begin(fleet, 0, 1 << 14)
        async with fleet.open(0, "GET", f"/stretto/streams/{name}") as first:
            await texts_of(first, 3)
            async with fleet.open(1, "GET", f"/stretto/streams/{name}") as second:
                status, text = await texts_of(second, 3)
                _, rest = await texts_of(first)
        holder = fleet.guards[0].state
        (kept,) = get_streams(holder).values()
        is_left = kept._reader is None
        async with fleet.client(1) as web:
            ended = await web.delete(f"/stretto/streams/{name}")
        while holder.generations:
            await asyncio.sleep(0.001)
        return status, text, rest, is_left, ended.json(), name

    status, text, rest, is_left, ended, name = run(story())
    assert (status, text[:6]) == (200, "id: 1\n")
    assert json.loads(rest.rpartition("data: ")[2])["error"]["code"] == "taken_over"
    assert is_left
    assert ended == {"ended": name}


def test_a_stream_whose_replica_dies_ends_with_an_error():
    async def story():
        fleet = Fleet(opener=endless())
        name, path = await begin(fleet, 0, 1 << 14), "/stretto/streams/"
        async with fleet.open(1, "GET", path + name) as messages:
            begun = await texts_of(messages, 3)
            fleet.dead = {0}
            rest = await texts_of(messages)
        async with fleet.open(1, "GET", path + name) as messages:
            later = await texts_of(messages)
        fleet.ask = lambda request: _found_by("r0")
        async with fleet.open(1, "GET", path + name) as messages:
            at_once = await texts_of(messages)
        async with fleet.client(0) as web:
            await web.delete(path + name)
        return begun, rest, later, at_once

    begun, (_, rest), later, at_once = run(story())
    assert begun[0] == 200
    assert json.loads(rest.rpartition("data: ")[2])["error"]["code"] == "replica_lost"
    assert (later[0], json.loads(later[1])["error"]["code"]) == (404, "not_found")
    assert (at_once[0], json.loads(at_once[1])["error"]["code"]) == (503, "replica_lost")


async def _found_by(replica):
    return [{"replica": replica, "status": 200, "headers": [], "body": b""}]


@pytest.mark.parametrize(
    "texts", [["# HELP a b\n# TYPE a gauge\na 1\n"] * 2, ["# TYPE a gauge\na 1\n", "# TYPE b gauge\nb 1\n"]]
)
def test_merged_metrics_have_each_head_once(texts):
    lines = merge_metrics(texts).splitlines()
    heads = [line for line in lines if line.startswith("#")]
    assert len(heads) == len(set(heads))
    assert len(lines) - len(heads) == 2


def test_sums_do_without_what_a_model_lacks():
    facts = {"models": {"m": {"loaded": False}}}
    assert json.loads(json.dumps(sum_statistics({"a": facts})))["sums"]["all"]["running"] == 0
