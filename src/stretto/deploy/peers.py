"""One answer for all replicas of a model, where a replica alone would answer for itself.

    GET /metrics, /stretto/requests, /stretto/pins      those of all replicas together
    GET /stretto/replicas                               each replica, and their sum
    GET, DELETE /v1/responses/ID                        whichever replica has it
    DELETE /stretto/requests/ID, /stretto/pins/NAME     likewise, and /stretto/streams/ID

Requests like these go to every replica as they came, keys and all, so that each checks them as its own. They
are rare and small; requests that generate are never sent on.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from stretto.server.http.streaming import ask_app

JSON = (b"content-type", b"application/json")
REPLICAS, STATS = "/stretto/replicas", "/stretto/stats"
FOUND_ANYWHERE = {
    "GET": ("/v1/responses/",),
    "DELETE": ("/v1/responses/", "/stretto/requests/", "/stretto/streams/", "/stretto/pins/"),
}
BROADCAST_SECONDS = 5.0  # for all replicas to answer
SUMMED = ("running", "waiting", "cells", "held")  # of a model's engine and cache

Request = dict[str, Any]  # method, path, query_string and headers: what can be sent to another process
Answer = dict[str, Any]  # replica, status, headers and body
Broadcast = Callable[[Request], Awaitable[list[Answer]]]


class Peers:
    """An ASGI app around a replica's; `broadcast` sends a request to all replicas, this one among them."""

    def __init__(self, app: ASGIApp, broadcast: Broadcast) -> None:
        self._app = app
        self._broadcast = broadcast

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        how = "" if scope["type"] != "http" else _how(scope["method"], scope["path"])
        if not how:
            await self._app(scope, receive, send)
            return
        request = make_request(scope)
        own = await answer_request(self._app, request)
        if own["status"] == (404 if how == "find" else 200):
            own = _merged(scope["path"], own, await self._broadcast(request))
        await send({"type": "http.response.start", "status": own["status"], "headers": own["headers"]})
        await send({"type": "http.response.body", "body": own["body"]})


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
