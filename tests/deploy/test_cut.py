"""Streams whose replica has died: what Ray's Python proxy sends last."""

import asyncio
import json
import os
import signal

import pytest

from live_cluster import ask, body, fleet, live, replicas, visiting
from stretto.deploy.cut import EndCutStreams

EVENTS = b"text/event-stream; charset=utf-8"


def sent(path, kind, *pieces, ended=False):
    """The bodies that come out when an app sends these pieces, and stops."""
    found = []

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
        for n, piece in enumerate(pieces):
            more = not ended or n + 1 < len(pieces)
            await send({"type": "http.response.body", "body": piece, "more_body": more})

    async def send(message):
        found.append(message)

    asyncio.run(EndCutStreams(app)({"type": "http", "path": path}, None, send))
    return [message["body"] for message in found if message["type"] == "http.response.body"]


@pytest.mark.parametrize(
    ("path", "kind", "start"),
    [
        ("/v1/chat/completions", EVENTS, 'data: {"error":{"message":"the replica'),
        ("/route/v1/chat/completions", EVENTS, 'data: {"error":{"message":"the replica'),
        ("/v1/messages", EVENTS, 'event: error\ndata: {"type":"error","error":{"type":"overloaded_error"'),
        ("/v1/responses", EVENTS, 'event: error\ndata: {"type":"error","code":"replica_lost"'),
        ("/api/chat", b"application/x-ndjson", '{"error":"the replica'),
    ],
)
def test_a_cut_stream_ends_with_an_error_of_its_protocol(path, kind, start):
    first, last = sent(path, kind, b"data: {}\n\n")
    assert first == b"data: {}\n\n"
    text = last.decode()
    assert text.startswith(start)
    json.loads(text.partition("data: ")[2] or text)


def test_a_stream_that_ends_and_other_answers_are_left_alone():
    assert sent("/v1/chat/completions", EVENTS, b"a", b"", ended=True) == [b"a", b""]
    assert sent("/v1/chat/completions", b"application/json", b"{") == [b"{"]


@live
def test_a_killed_replica_is_an_error_event_through_the_python_proxy(tmp_path, smollm2_path):
    async def run(url):
        async with visiting(url) as web:
            (name,) = await replicas(web, 1)
            streams = [asyncio.create_task(ask(web, body(n, 3000))) for n in range(3)]
            await asyncio.sleep(5)
            os.kill(int(name.partition(":")[2]), signal.SIGKILL)
            return await asyncio.gather(*streams)

    with fleet(tmp_path, f"smollm2={smollm2_path}") as made:
        made.up("--threads", 1, "--proxy", "python")
        heard = asyncio.run(run(made.url))
    print([one.error for one in heard])
    assert all(one.error.startswith('data: {"error":') for one in heard)
