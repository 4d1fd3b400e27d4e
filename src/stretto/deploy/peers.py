"""One answer for all replicas of a model, where a replica alone would answer for itself.

    GET /metrics, /stretto/requests, /stretto/pins      those of all replicas together
    GET /stretto/replicas                               each replica, and their sum
    GET, DELETE /v1/responses/ID                        whichever replica has it
    DELETE /stretto/requests/ID, /stretto/pins/NAME     likewise, and /stretto/streams/ID
    GET /stretto/streams/ID                             read on from the replica that holds the answer

Requests like these go to every replica as they came, keys and all, so that each checks them as its own. They
are rare and small; requests that generate are never sent on. A stream is looked for by HEAD, and then passed
on as it comes from the one replica that has it.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stretto.deploy.cut import REASON, last_event
from stretto.server.http.errors import dumps, gone, write_error
from stretto.server.http.streaming import EVENTS, ask_app

JSON = (b"content-type", b"application/json")
REPLICAS, STATS, STREAMS = "/stretto/replicas", "/stretto/stats", "/stretto/streams/"
FOUND_ANYWHERE = {
    "GET": ("/v1/responses/",),
    "DELETE": ("/v1/responses/", "/stretto/requests/", STREAMS, "/stretto/pins/"),
}
BROADCAST_SECONDS = 5.0  # for all replicas to answer
SUMMED = ("running", "waiting", "cells", "held")  # of a model's engine and cache

Request = dict[str, Any]  # method, path, query_string and headers: what can be sent to another process
Answer = dict[str, Any]  # replica, status, headers and body
Broadcast = Callable[[Request], Awaitable[list[Answer]]]
Relay = Callable[[str, Request], AsyncGenerator[Message, None]]

log = logging.getLogger("stretto.deploy")


class Peers:
    """An ASGI app around a replica's.

    `broadcast` sends a request to all replicas, this one among them; `relay` to the one of that name, whose
    answer comes in pieces.
    """

    def __init__(self, app: ASGIApp, broadcast: Broadcast, relay: Relay) -> None:
        self._app = app
        self._broadcast = broadcast
        self._relay = relay

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        how = "" if scope["type"] != "http" else _how(scope["method"], scope["path"])
        if how == "read on":
            await self._read_on(scope, receive, send)
            return
        if not how:
            await self._app(scope, receive, send)
            return
        request = make_request(scope)
        own = await answer_request(self._app, request)
        if own["status"] == (404 if how == "find" else 200):
            own = _merged(scope["path"], own, await self._broadcast(request))
        await send({"type": "http.response.start", "status": own["status"], "headers": own["headers"]})
        await send({"type": "http.response.body", "body": own["body"]})

    async def _read_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A stream from the replica that holds it; this one answers if it does, or if none does."""
        request = make_request(scope)
        asked = {**request, "method": "HEAD"}
        holder = ""
        if (await answer_request(self._app, asked))["status"] == 404:
            found = await self._broadcast(asked)
            holder = next((one["replica"] for one in found if one["status"] == 200), "")
        if not holder:
            await self._app(scope, receive, send)
            return
        copying = asyncio.create_task(self._pass_on(holder, request, send))
        leaving = asyncio.create_task(gone(receive))
        try:
            await asyncio.wait((copying, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (copying, leaving):
                task.cancel()
            await asyncio.wait((copying, leaving))

    async def _pass_on(self, holder: str, request: Request, send: Send) -> None:
        """Send the messages of another replica's answer, and an error behind them if it ends."""
        is_begun = False
        try:
            async with aclosing(self._relay(holder, request)) as messages:
                async for message in messages:
                    await send(message)
                    is_begun = True
            return
        except Exception as error:
            log.warning("the replica %s did not end its stream: %r", holder, error)
        body = last_event(request["path"], EVENTS)
        if not is_begun:
            body = dumps(write_error(REASON, request["path"])).encode()
            headers = [JSON, (b"content-length", str(len(body)).encode())]
            await send({"type": "http.response.start", "status": REASON.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def make_request(scope: Scope) -> Request:
    """The request of a scope, as other replicas get it."""
    path = STATS if scope["path"] == REPLICAS else scope["path"]
    return {
        "method": scope["method"],
        "path": path,
        "query_string": scope.get("query_string", b""),
        "headers": [
            (bytes(name), bytes(value)) for name, value in scope["headers"] if name != b"content-length"
        ],
    }


async def answer_request(app: ASGIApp, request: Request, replica: str = "") -> Answer:
    """What an app answers to a request without a body."""
    status, headers, body = await ask_app(app, request)
    return {"replica": replica, "status": status, "headers": headers, "body": body}


def _how(method: str, path: str) -> str:
    if method == "GET" and path in ("/metrics", REPLICAS, "/stretto/requests", "/stretto/pins"):
        return "sum"
    if method == "GET" and path.startswith(STREAMS):
        return "read on"
    return "find" if path.startswith(FOUND_ANYWHERE.get(method, ())) and method in FOUND_ANYWHERE else ""


def _merged(path: str, own: Answer, others: list[Answer]) -> Answer:
    """The answer for all of them; this replica's own if nobody has a better one."""
    good = sorted((one for one in others if one["status"] == 200), key=lambda one: str(one["replica"]))
    if not good:
        return own
    if path == "/metrics":
        body = merge_metrics([one["body"].decode() for one in good]).encode()
    elif path == REPLICAS:
        body = json.dumps(sum_statistics({one["replica"]: json.loads(one["body"]) for one in good})).encode()
    elif path in ("/stretto/requests", "/stretto/pins"):
        key = path.rpartition("/")[2]
        found = [json.loads(one["body"]) for one in good]
        body = json.dumps({**found[0], key: [item for one in found for item in one[key]]}).encode()
    else:
        return good[0]
    headers = [one for one in own["headers"] if one[0] not in (b"content-length", b"content-type")]
    kind = next((one for one in own["headers"] if one[0] == b"content-type"), JSON)
    return {**own, "headers": [*headers, kind, (b"content-length", str(len(body)).encode())], "body": body}


def sum_statistics(replicas: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Each replica's statistics, and in `sums` what its models and what all replicas have together."""
    sums: dict[str, dict[str, int]] = {"all": dict.fromkeys(SUMMED, 0)}
    for name, facts in replicas.items():
        own = sums[name] = dict.fromkeys(SUMMED, 0)
        for model in facts["models"].values():
            known = {**model.get("engine", {}), **model.get("cache", {})}
            for key in SUMMED:
                own[key] += known.get(key, 0)
        for key in SUMMED:
            sums["all"][key] += own[key]
    return {"n": len(replicas), "sums": sums, "replicas": replicas}


def merge_metrics(texts: list[str]) -> str:
    """Metrics of several replicas as one text: each metric once, with the samples of all.

    >>> merge_metrics(["# TYPE a gauge\\na{r=\\"1\\"} 1\\n", "# TYPE a gauge\\na{r=\\"2\\"} 2\\n"])
    '# TYPE a gauge\\na{r="1"} 1\\na{r="2"} 2\\n'
    """
    heads: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for text in texts:
        name = ""
        for line in text.splitlines():
            if line.startswith("#"):
                name = line.split(" ", 3)[2]
                known = heads.setdefault(name, [])
                if line not in known:
                    known.append(line)
            elif line:
                samples.setdefault(name, []).append(line)
    lines = [line for name, head in heads.items() for line in (*head, *samples.get(name, ()))]
    return "\n".join(lines) + "\n"
