"""One answer for all replicas, made of those of each."""

import asyncio
import json

import httpx
import pytest

from serving import TINY, mock
from stretto.deploy.peers import Peers, answer_request, merge_metrics, sum_statistics
from stretto.server.app import create_app
from stretto.server.settings import ModelEntry, Settings

KEYS = {"api_keys": ("one", "two"), "admin_keys": ("root",)}


class Fleet:
    """Replicas in one process: apps that ask each other."""

    def __init__(self, n=2, **settings):
        entry = ModelEntry.parse(f"mock={TINY}")
        self.guards = [
            create_app(Settings((entry,), port=0, memory=1 << 40, **settings), mock()) for _ in range(n)
        ]
        for number, guard in enumerate(self.guards):
            guard.state.labels = {"replica": f"r{number}"}
        self.dead = set()

    async def ask(self, request):
        alive = [(n, guard) for n, guard in enumerate(self.guards) if n not in self.dead]
        return [await answer_request(guard, request, f"r{n}") for n, guard in alive]

    def client(self, number, **headers):
        transport = httpx.ASGITransport(Peers(self.guards[number], self.ask))
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
