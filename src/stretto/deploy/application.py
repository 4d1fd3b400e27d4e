"""A model as an application of Ray Serve; what a YAML file names:

applications:
  - name: smollm2
    route_prefix: /
    import_path: stretto.deploy.application:build
    args: {model: smollm2, replicas: 2, threads: 1}
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import AsyncGenerator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stretto.deploy import require_ray
from stretto.deploy.environment import check_cluster
from stretto.deploy.peers import BROADCAST_SECONDS, Answer, Peers, Request, answer_request
from stretto.deploy.policy import Ask
from stretto.deploy.prefixes import report
from stretto.deploy.settings import DEPLOYMENT, DeploySettings
from stretto.llm import LLM
from stretto.server.app import create_app
from stretto.server.http.protocol import with_descriptors
from stretto.server.http.state import State
from stretto.server.http.streaming import open_app
from stretto.server.http.usage import HELPER_THREAD_NAME
from stretto.server.serve import HELPER_THREADS, configure_logging

if TYPE_CHECKING:
    from ray.serve import Application


# How many replicas a model needs, by its queue and the pressure on its cells.
#
# A replica that has as many requests as it is to have, or whose requests hold as many cells as they are to
# hold, is one replica's worth of load; the sum over all replicas, rounded up, is how many are needed.
# Requests alone say little: three long conversations may fill a cache that three hundred short ones do not.
#
# Ray calls `Pressure` in its controller, to which it is sent by value: it uses the standard library only.

REQUESTS, CELLS = "stretto_requests", "stretto_cells"  # what replicas report
SLACK = 1e-6  # so that 8 of 8 requests are one replica's worth in floating point too


def measure_load(requests: float, cells: float, target_requests: float, target_cells: float) -> float:
    """The load of a replica with so many requests, running and waiting, that hold a share of its cells.

    >>> measure_load(4, 0.1, 8, 0.8), measure_load(1, 0.9, 8, 0.9)
    (0.5, 1.0)
    """
    return max(requests / target_requests, cells / target_cells)


def count_needed(loads: list[float]) -> int:
    """How many replicas share these loads without any having more than one replica's worth.

    >>> count_needed([1.5]), count_needed([0.5, 0.5]), count_needed([0.4, 0.7]), count_needed([])
    (2, 1, 2, 0)
    """
    return math.ceil(sum(loads) - SLACK) if loads else 0


class Pressure:
    """A policy for Ray Serve: called now and then with what the replicas report."""

    def __init__(self, requests: float, cells: float) -> None:
        self.requests = requests
        self.cells = cells

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        """The number of replicas that are needed, within the bounds of the settings, and no state."""
        reported: Mapping[str, Mapping[Any, float]] = context.aggregated_metrics or {}
        requests, cells = reported.get(REQUESTS, {}), reported.get(CELLS, {})
        loads = [
            measure_load(requests[replica], cells.get(replica, 0.0), self.requests, self.cells)
            for replica in requests
        ]
        if not loads:  # nobody has reported yet
            return context.target_num_replicas, {}
        least, most = context.capacity_adjusted_min_replicas, context.capacity_adjusted_max_replicas
        return max(least, min(most, count_needed(loads))), {}


HEALTH_SECONDS = 5.0  # between two looks at a replica
STATS_SECONDS = 1.0  # between two reports to the autoscaler
WINDOW_SECONDS = 5.0  # that reports are averaged over


def build(args: Mapping[str, Any]) -> Application:
    """The application of a model; `args` are the fields of `DeploySettings`."""
    require_ray()
    from ray import serve

    from stretto.deploy import router

    settings = DeploySettings.parse(args)
    found, by_prefix = options(settings), settings.routing == "prefix"
    found = router.configure(found) if by_prefix else router.configure_as_ray(found)
    ingress = serve.ingress()(Replica)
    application = serve.deployment(name=DEPLOYMENT)(ingress).options(**found).bind(dict(args))
    if by_prefix and os.environ.get("RAY_SERVE_ENABLE_HA_PROXY") == "1":
        application = router.attach_router(application)
    return application


def options(settings: DeploySettings) -> dict[str, Any]:
    """The options of the deployment, as Ray takes them."""
    actor: dict[str, Any] = {"num_cpus": settings.threads if settings.cpus is None else settings.cpus}
    if settings.gpus:
        actor["num_gpus"] = settings.gpus
    if settings.resources:
        actor["resources"] = dict(settings.resources)
    if settings.labels:
        actor["label_selector"] = dict(settings.labels)
    found: dict[str, Any] = {
        "ray_actor_options": actor,
        "max_ongoing_requests": settings.max_requests,
        "graceful_shutdown_timeout_s": settings.grace_seconds,
        "health_check_period_s": HEALTH_SECONDS,
    }
    if settings.per_node is not None:
        found["max_replicas_per_node"] = settings.per_node
    if settings.autoscaling is None:
        return found | {"num_replicas": settings.replicas}
    return found | {"autoscaling_config": _autoscaling(settings)}


def _autoscaling(settings: DeploySettings) -> dict[str, Any]:
    from ray.serve.config import AutoscalingPolicy

    wanted = settings.autoscaling
    assert wanted is not None
    return {
        "min_replicas": wanted.min_replicas,
        "max_replicas": wanted.max_replicas,
        "upscale_delay_s": wanted.up_seconds,
        "downscale_delay_s": wanted.down_seconds,
        "metrics_interval_s": STATS_SECONDS,
        "look_back_period_s": WINDOW_SECONDS,
        "policy": AutoscalingPolicy(
            policy_function=Pressure, policy_kwargs={"requests": wanted.requests, "cells": wanted.cells}
        ),
    }


# A replica: one engine, and the same HTTP app as `stretto serve`, as a deployment of Ray Serve.
#
# Ray starts the class below in a process of its own, asks it for an ASGI app, and sends requests to it:
# from its HAProxy directly, or through its Python proxy. The app is `stretto.server.app.create_app`,
# unchanged; around it stands only what a replica has and a server has not: a name in each answer, and the
# route of its model.

REPLICA_HEADER = b"x-stretto-replica"  # in every answer: which replica gave it


class Replica:
    """The class that Ray Serve runs. `args` are the fields of `DeploySettings`."""

    def __init__(self, args: dict[str, Any]) -> None:
        from ray import serve

        self.settings = DeploySettings.parse(args)
        context = serve.get_replica_context()
        self.name, self.application = context.replica_id.unique_id, context.app_name
        self.host = check_cluster()
        self.state: State | None = None
        self._app: ASGIApp | None = None

    async def __serve_build_asgi_app__(self) -> ASGIApp:  # the name is Ray's
        """The app, once its model is loaded: a replica that is ready answers at once."""
        settings = self.settings.server(self.host)
        settings = replace(settings, limits=with_descriptors(settings.limits))
        configure_logging(settings)
        asyncio.get_running_loop().set_default_executor(
            ThreadPoolExecutor(HELPER_THREADS, HELPER_THREAD_NAME)
        )
        # Reading the head of the file may download it: once a node, since the store locks each model.
        guard = await asyncio.to_thread(create_app, settings)
        self._app, self.state = guard, guard.state
        self.state.labels = {"replica": self.name}
        await self.state.registry.load(self.settings.entry.name)
        return Named(Peers(guard, self._broadcast, self._relay), self.name)

    async def visit(self, request: Request) -> Answer:
        """This replica's own answer to a request that another one was sent."""
        assert self._app is not None
        return await answer_request(self._app, request, self.name)

    async def visit_stream(self, request: Request, ask: Ask) -> AsyncGenerator[Message, None]:
        """This replica's own answer, in pieces, to a request that another one was sent for it."""
        assert self._app is not None
        async with aclosing(open_app(self._app, request)) as messages:
            async for message in messages:
                yield message

    async def _relay(self, replica: str, request: Request) -> AsyncGenerator[Message, None]:
        """The answer of the replica of that name, as it comes."""
        from ray import serve

        handle = serve.get_deployment_handle(DEPLOYMENT, self.application).options(stream=True)
        answer = handle.visit_stream.remote(request, Ask(replica=replica))
        try:
            async for message in answer:
                yield message
        finally:
            answer.cancel()

    async def _broadcast(self, request: Request) -> list[Answer]:
        """The answers of all replicas that answer in time."""
        from ray import serve

        handle = serve.get_deployment_handle(DEPLOYMENT, self.application)
        try:
            found = await handle.broadcast("visit", request).results_async(
                timeout_s=BROADCAST_SECONDS, return_exceptions=True
            )
        except TimeoutError:
            return []
        return [one for one in found if isinstance(one, dict)]

    async def record_routing_stats(self) -> dict[str, Any]:
        """What the router knows of this replica; Ray asks every second or so."""
        return {} if self.state is None else await asyncio.to_thread(report, self.state)

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """What the autoscaler knows: requests that run and wait, and the share of cells that they hold."""
        return await asyncio.to_thread(self._pressure)

    def _pressure(self) -> dict[str, float]:
        served = None if self.state is None else self.state.registry.models[self.settings.entry.name]
        if served is None or not isinstance(served.llm, LLM):
            return {REQUESTS: 0.0, CELLS: 0.0}
        metrics, stats = served.llm.metrics, served.llm.cache.stats()
        return {REQUESTS: float(metrics.running + metrics.waiting), CELLS: stats.held / stats.cells}


class Named:
    """An ASGI app around the app: takes the route of the application off paths, and names the replica.

    The head of an answer waits for its first bytes: until then the proxy may give a request whose replica has
    died to another one, since nobody has heard anything of the answer.
    """

    def __init__(self, app: ASGIApp, name: str) -> None:
        self._app = app
        self._headers = [(REPLICA_HEADER, f"{name}:{os.getpid()}".encode())]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        route, path = scope.get("root_path", ""), scope["path"]
        if route and path.startswith(route):
            scope["path"], scope["root_path"] = path[len(route) :] or "/", ""
        head: Message | None = None

        async def named(message: Message) -> None:
            nonlocal head
            if message["type"] == "http.response.start":
                head = {**message, "headers": [*message["headers"], *self._headers]}
                return
            if head is not None:
                begun, head = head, None
                await send(begun)
            await send(message)

        await self._app(scope, receive, named)
