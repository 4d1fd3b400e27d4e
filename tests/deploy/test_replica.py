"""Replicas answer as the server does, and as each other."""

import asyncio

import httpx
import pytest

from live_cluster import ask, body, live, replicas, visiting
from serving import visiting as serving
from stretto.deploy.application import Named
from stretto.deploy.environment import BUFFER_BYTES

ROUTED = {"/": "/", "/small": "/", "/small/health": "/health", "/health": "/health"}


@pytest.mark.parametrize(("path", "seen"), ROUTED.items())
def test_the_route_of_an_application_is_no_part_of_its_paths(path, seen):
    asked = []

    async def app(scope, receive, send):
        asked.append((scope["path"], scope["root_path"]))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    sent = []

    async def send(message):
        sent.append(message)

    route = "/small" if path.startswith("/small") else ""
    asyncio.run(Named(app, "abc")({"type": "http", "path": path, "root_path": route}, None, send))
    assert asked == [(seen, "")]
    assert sent[0]["headers"][0][0] == b"x-stretto-replica"
    assert sent[0]["headers"][0][1].startswith(b"abc:")


def test_metrics_carry_the_label_of_a_replica():
    with serving() as (running, web):
        running.state.labels = {"replica": "abc"}
        web.post("/v1/completions", json={"model": "mock", "prompt": "a"})
        lines = [line for line in web.get("/metrics").text.splitlines() if not line.startswith("#")]
        assert lines
        assert all('{replica="abc"' in line for line in lines)
        assert any(line.startswith('stretto_added_total{replica="abc",model="mock"} 1') for line in lines)


@live
def test_the_same_seed_gives_the_same_tokens_on_any_replica(two_replicas):
    async def run():
        async with visiting(two_replicas.url) as web:
            await replicas(web, 2)
            # So many that one replica, which holds their prefix, is too busy for all of them.
            return await asyncio.gather(*(ask(web, body(5, 16, temperature=1.0)) for _ in range(40)))

    heard = asyncio.run(run())
    assert [one.error for one in heard if one.error] == []
    assert len({one.replica for one in heard}) == 2
    assert len({one.text for one in heard}) == 1


@live
def test_the_second_turn_of_a_conversation_goes_where_the_first_went(two_replicas):
    """By its tokens: its text has one block, which all conversations begin with."""
    system = {"role": "system", "content": "You are a careful assistant who answers in plain words. " * 4}

    async def talk(web, number):
        messages = [system, {"role": "user", "content": f"Tell me of the number {number}. " * 8}]
        first = await ask(web, body(5, 8, messages=messages))
        messages += [{"role": "assistant", "content": first.text}, {"role": "user", "content": "Go on."}]
        return first.replica, (await ask(web, body(5, 8, messages=messages))).replica

    async def run():
        async with visiting(two_replicas.url) as web:
            await replicas(web, 2)
            await ask(web, body(5, 8))  # the router loads the tokenizer
            await asyncio.sleep(3)
            return await asyncio.gather(*(talk(web, number) for number in range(12)))

    places = asyncio.run(run())
    assert len({first for first, _ in places}) == 2
    assert [pair for pair in places if pair[0] != pair[1]] == []


@live
def test_a_stream_is_read_on_whichever_replica_is_asked(two_replicas):
    async def events(answer, enough=None):
        text = ""
        async for piece in answer.aiter_text():
            text += piece
            if enough is not None and text.count("\n\n") >= enough:
                break
        return text[: text.rindex("\n\n") + 2]

    async def run():
        async with visiting(two_replicas.url) as web:
            await replicas(web, 2)
            asked = body(5, 400, resumable=True)
            async with web.stream("POST", "/v1/chat/completions", json=asked) as answer:
                path = f"/stretto/streams/{answer.headers['x-stretto-stream']}"
                begun = await events(answer, 5)
            after, places, pieces = begun.count("\n\n"), set(), [begun]
            for _ in range(8):  # each takes over where the one before it left
                async with web.stream("GET", f"{path}?after={after}") as answer:
                    places.add(answer.headers["x-stretto-replica"])
                    pieces.append(await events(answer, 5))
                after += pieces[-1].count("\n\n")
            pieces.append((await web.get(f"{path}?after={after}")).text)
            whole = [(await web.get(path)).text for _ in range(4)]
            ended = await web.delete(path)
            return places, "".join(pieces), whole, ended.status_code

    places, pieces, whole, ended = asyncio.run(run())
    assert len(places) == 2
    assert set(whole) == {pieces}
    assert pieces.endswith("data: [DONE]\n\n")
    assert ended == 200


@live
def test_a_replica_has_every_endpoint_of_the_server(two_replicas):
    with serving() as (_, server):
        expected = server.get("/openapi.json").json()["paths"].keys()
    answer = httpx.get(f"{two_replicas.url}/openapi.json")
    assert answer.json()["paths"].keys() == expected
    assert httpx.get(two_replicas.url).text.startswith("<!doctype html>")


@live
def test_an_error_is_the_servers_own(two_replicas):
    answer = httpx.post(f"{two_replicas.url}/v1/chat/completions", json=body(temperature=-1))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "temperature")
    other = httpx.get(f"{two_replicas.url}/health", headers={"host": "evil.example"})
    assert httpx.get(f"{two_replicas.url}/v1/models", headers={"host": "evil.example"}).status_code == 421
    assert other.status_code == 200


@live
def test_a_body_longer_than_haproxys_buffer_goes_where_its_beginning_went(two_replicas):
    asked = body(messages=[{"role": "user", "content": "a b " * BUFFER_BYTES}])
    answers = [
        httpx.post(f"{two_replicas.url}/v1/chat/completions", json=asked, timeout=60) for _ in range(3)
    ]
    assert {answer.status_code for answer in answers} == {400}  # the prompt is too long
    assert len({answer.headers["x-stretto-replica"] for answer in answers}) == 1
