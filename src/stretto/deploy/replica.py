"""A replica: one engine, and the same HTTP app as `stretto serve`, as a deployment of Ray Serve.

Ray starts the class below in a process of its own, asks it for an ASGI app, and sends requests to it: from
its HAProxy directly, or through its Python proxy. The app is `stretto.server.app.create_app`, unchanged;
around it stands only what a replica has and a server has not: a name in each answer, and the route of its
model.
"""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stretto.deploy.closed import check_cluster
from stretto.deploy.peers import BROADCAST_SECONDS, Answer, Peers, Request, answered
from stretto.deploy.prefixes import report
from stretto.deploy.scaling import CELLS, REQUESTS
from stretto.deploy.settings import DEPLOYMENT, DeploySettings
from stretto.llm import LLM
from stretto.server.app import create_app
from stretto.server.descriptors import with_descriptors
from stretto.server.serve import HELPER_THREADS, configure_logging
from stretto.server.state import State
from stretto.server.usage import HELPER_THREAD_NAME

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
        return Named(Peers(guard, self._broadcast), self.name)

    async def visit(self, request: Request) -> Answer:
        """This replica's own answer to a request that another one was sent."""
        assert self._app is not None
        return await answered(self._app, request, self.name)

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
        slot = None if self.state is None else self.state.registry.slots[self.settings.entry.name]
        if slot is None or not isinstance(slot.llm, LLM):
            return {REQUESTS: 0.0, CELLS: 0.0}
        metrics, stats = slot.llm.metrics, slot.llm.cache.stats()
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
