"""Routing by prefixes in Ray Serve: the request router of a deployment, and the ingress that HAProxy asks.

    options = configure({"num_replicas": 2, …})             # for a deployment whose replicas report
    application = attach_router(Replica.options(**options).bind(…))

Two ways lead to a replica. HAProxy sends the body of each POST to `Ingress` (`/internal/route`), gets a name
of a replica and talks to it directly: no token of an answer passes through Python. That hook of Ray is
internal (`_with_ingress_request_router`), which is why Ray's version is pinned. With Ray's own proxy a router
sees no body, and a session header (`x-session-id`) decides.

A router that raises leaves its request without an answer, for ever, so nothing here does: what cannot be
understood goes to the least busy replica.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ray import serve
from ray.serve._private.common import RequestMetadata
from ray.serve._private.request_router.pow_2_router import PowerOfTwoChoicesRequestRouter
from ray.serve.config import RequestRouterConfig
from ray.serve.handle import DeploymentHandle
from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica
from starlette.types import Receive, Scope, Send

from stretto.deploy.asks import TextModel, bearer, read_ask
from stretto.deploy.environment import KEY_HEADER, SESSION_VARIABLE
from stretto.deploy.policy import PICK_SECONDS, Ask, Holdings, Policy, PrefixPolicy, RoundRobin

# The tokenizers of the models that replicas report, loaded beside the router.
#
# Only the head of a model's file is read. Where a router's machine does not have the file, texts stand for
# tokens (`stretto.deploy.asks`), and the router says so once.

MAX_MODELS = 64


class KnownModels:
    """Tokenizers by the names of models; loading is done by a thread, and requests do not wait for it."""

    def __init__(self, opener: Callable[[str], TextModel] = TextModel.open) -> None:
        self._open = opener
        self._files: dict[str, tuple[str, int]] = {}  # path and size, of all that were tried
        self.models: dict[str, TextModel] = {}
        self.is_salted = False  # API keys share no prefixes

    def take_report(self, report: object) -> None:
        """Take the models that a report names."""
        facts = report if isinstance(report, Mapping) else {}
        self.is_salted = facts.get("salted") is True
        models = facts.get("models")
        for name, file in (models if isinstance(models, Mapping) else {}).items():
            if (
                _is_file(name, file)
                and self._files.get(name) != tuple(file)
                and len(self._files) < MAX_MODELS
            ):
                self._files[name] = (file[0], file[1])
                threading.Thread(target=self.load, args=(name, file[0]), daemon=True).start()

    def ready(self) -> Mapping[str, TextModel]:
        """Those that are loaded."""
        return self.models

    def load(self, name: str, path: str) -> None:
        """Read what a model's file tells of its prompts; a file that cannot be read is left out."""
        try:
            self.models = {**self.models, name: self._open(path)}
        except Exception as error:
            log.warning("requests for %s are routed by their text, not by tokens: %s", name, error)


MODELS = KnownModels()  # of all deployments that this process routes to


def known_models() -> KnownModels:
    """Those of this process: where Ray pickles classes by value, their globals are their own."""
    from stretto.deploy import router

    return router.MODELS


def _is_file(name: object, file: object) -> bool:
    return (
        isinstance(name, str)
        and isinstance(file, (tuple, list))
        and len(file) == 2
        and isinstance(file[0], str)
        and isinstance(file[1], int)
        and Path(file[0]).is_absolute()
    )


TEXT_PICK_SECONDS = 600.0  # that keys count which no replica reports
MAX_BODY = 16 << 20
ROUTE_SECONDS = 4.0  # HAProxy waits for 5
REPORT_SECONDS = 1.0
SESSION_HEADER = os.environ.get(SESSION_VARIABLE, "x-session-id").lower()

log = logging.getLogger("stretto.deploy")


class PrefixRouter(RequestRouter):  # type: ignore[misc]  # Ray may not be installed
    """Sends requests where their prefix is (`stretto.deploy.policy`)."""

    def initialize_state(self, policy: str = "prefix", **fields: Any) -> None:
        """Ray calls it with the keyword arguments of the configuration."""
        self._policy: Policy = RoundRobin() if policy == "round robin" else PrefixPolicy(**fields)
        self.holdings = Holdings()
        self._taken: dict[str, object] = {}  # the last report of each replica

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """The replicas in the order in which they should be tried."""
        try:
            if pending_request is not None:  # else Ray asks again at once if all are busy
                pending_request.routing_context.should_backoff = True
            if named := find_named(candidate_replicas, pending_request):
                return named
            return self._ordered(list(candidate_replicas), pending_request)
        except Exception:
            log.exception("routing failed; the request goes to any replica")
            return [list(candidate_replicas)]

    def _ordered(
        self, candidates: list[RunningReplica], pending: PendingRequest | None
    ) -> list[list[RunningReplica]]:
        now, ask = time.monotonic(), read_pending(pending)
        by_name = {replica.replica_id.unique_id: replica for replica in candidates}
        self.learn(by_name, now)
        order = [name for name in self._policy.order(ask, self.holdings, now) if name in by_name]
        if order:
            self.holdings.note_pick(order[0], ask, now, PICK_SECONDS if ask.is_exact else TEXT_PICK_SECONDS)
        return [[by_name[name]] for name in order]

    def learn(self, replicas: Mapping[str, RunningReplica], now: float) -> None:
        """Take reports that have come since; a replica without any counts as idle and empty."""
        if replicas.keys() != self.holdings.replicas.keys():
            self.holdings.keep(replicas)
            self._taken = {name: self._taken[name] for name in replicas if name in self._taken}
        for name, replica in replicas.items():
            report = replica.routing_stats
            if report and report is not self._taken.get(name):
                self._taken[name] = report
                self.holdings.take_report(name, report, now)
                known_models().take_report(report)


class RayRouter(PowerOfTwoChoicesRequestRouter):  # type: ignore[misc]  # Ray may not be installed
    """Ray's own routing, but for requests that name their replica."""

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """The replicas in the order in which they should be tried."""
        if named := find_named(candidate_replicas, pending_request):
            return named
        chosen: list[list[RunningReplica]] = await super().choose_replicas(
            candidate_replicas, pending_request
        )
        return chosen

    def _fulfill_next_pending_request(
        self, replica: RunningReplica, request_metadata: RequestMetadata | None = None
    ) -> None:
        """Give a replica to the first request that waits, or to the one that named it."""
        waiting = self._get_pending_request_matching_internal_request_id(request_metadata)
        if find_named([replica], waiting):
            RequestRouter._fulfill_next_pending_request(self, replica, request_metadata)
        else:
            super()._fulfill_next_pending_request(replica, request_metadata)


def find_named(replicas: list[RunningReplica], pending: PendingRequest | None) -> list[list[RunningReplica]]:
    """The replica that a request of another replica names, and no other; none if it is gone."""
    name = next((one.replica for one in getattr(pending, "args", ()) if isinstance(one, Ask)), "")
    return [[one] for one in replicas if name and one.replica_id.unique_id == name]


def read_pending(pending: PendingRequest | None) -> Ask:
    """What is known of a request: all by the ingress, its session by a proxy."""
    if pending is None:
        return Ask()
    for argument in pending.args:
        if isinstance(argument, Ask):
            return argument
    if SESSION_HEADER == KEY_HEADER:  # one replica for all that a key asks would be no session
        return Ask(is_exact=False)
    session = getattr(pending.metadata, "session_id", "")
    return Ask(session=session if isinstance(session, str) else "", is_exact=False)


class Ingress:
    """The application that HAProxy asks where a request should go: `POST /internal/route` with its body."""

    def __init__(self, server: DeploymentHandle) -> None:
        self._handle = server
        self._handle._init(_run_router_in_separate_loop=False)  # a thread of its own costs two wake-ups
        self._requests = self._by_tokens = 0
        self._seconds: deque[float] = deque(maxlen=1000)

    def __serve_build_asgi_app__(self) -> Any:  # Ray's name
        """The application: a function, since uvicorn takes a method for an older kind of application."""

        async def application(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http":
                await self.respond(scope, receive, send)
            elif scope["type"] == "lifespan":
                await _live(receive, send)

        return application

    async def respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with the name of a replica; 503 if there is none in time."""
        begun = time.perf_counter()
        try:
            data = await _body(receive)
            ask = self.ask(data, _headers(scope))
            self._by_tokens += bool(ask.is_exact and ask.keys)
            replica = await asyncio.wait_for(self._choose(ask), ROUTE_SECONDS)
            await _answer(send, 200, {"replica_id": replica})
        except Exception as error:
            log.warning("no replica for a request: %r", error)
            await _answer(send, 503, {"error": "there is no replica for this request"})
        self._requests += 1
        self._seconds.append(time.perf_counter() - begun)

    def figures(self) -> dict[str, Any]:
        """Requests so far, how many by their tokens, and quantiles of the last seconds that routing took."""
        seconds = sorted(self._seconds) or [0.0]
        p50, p99 = (seconds[int(share * (len(seconds) - 1))] for share in (0.5, 0.99))
        counts = {"requests": self._requests, "by_tokens": self._by_tokens}
        return {**counts, "p50": p50, "p99": p99, "cpu": time.process_time()}

    def ask(self, data: bytes, headers: Mapping[str, str]) -> Ask:
        """A request as routing sees it."""
        session, models = headers.get(SESSION_HEADER, ""), known_models()
        tenant = b""
        if SESSION_HEADER == KEY_HEADER:  # then it is no session
            session, tenant = "", bearer(session) if models.is_salted else b""
        return read_ask(data, models.ready(), session, tenant)

    async def _choose(self, ask: Ask) -> str:
        async with self._handle.choose_replica(ask, _reserve=False) as chosen:
            name: str = chosen._replica.replica_id.to_full_id_str()
            return name


def configure(options: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    """Options of a deployment with this router; `fields` are those of the policy."""
    PrefixPolicy(
        **{name: value for name, value in fields.items() if name != "policy"}
    )  # raises for wrong ones
    how = RequestRouterConfig(
        request_router_class="stretto.deploy.router:PrefixRouter",
        request_router_kwargs=fields,
        request_routing_stats_period_s=REPORT_SECONDS,
    )
    return {**options, "request_router_config": how}


def configure_as_ray(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a deployment that is routed to as Ray does by itself."""
    how = RequestRouterConfig(request_router_class="stretto.deploy.router:RayRouter")
    return {**options, "request_router_config": how}


def attach_router(application: Any, replicas: int = 1) -> Any:
    """An application whose requests HAProxy routes by their bodies; it needs `haproxy_environment`."""
    ingress = serve.deployment(
        serve.ingress()(Ingress),
        name="router",
        num_replicas=replicas,
        max_ongoing_requests=1000,
        ray_actor_options={"num_cpus": 0},
    )
    return application._with_ingress_request_router(ingress.bind(application))


async def _live(receive: Receive, send: Send) -> None:
    """Say that there is nothing to start and nothing to end."""
    while True:
        kind = (await receive())["type"]
        await send({"type": f"{kind}.complete"})
        if kind == "lifespan.shutdown":
            return


async def _body(receive: Receive) -> bytes:
    pieces: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return b"".join(pieces)
        piece = message.get("body", b"")
        size += len(piece)
        if size <= MAX_BODY:
            pieces.append(piece)
        if not message.get("more_body"):
            return b"".join(pieces)


def _headers(scope: Scope) -> dict[str, str]:
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}


async def _answer(send: Send, status: int, content: Mapping[str, str]) -> None:
    body = json.dumps(content).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
