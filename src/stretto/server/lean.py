"""Endpoints with a body of JSON, without FastAPI.

FastAPI's routing, dependencies and exit stacks take a third of a millisecond, its validation runs on the
event loop and knows no bounds, and these endpoints need none of it: here the body is read within bounds
(`bodies.py`) and given to the endpoint, a function of the body and the request.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, get_type_hints

from fastapi import APIRouter, FastAPI, Request
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from stretto.server.bodies import read_body
from stretto.server.errors import ClientGone
from stretto.server.schema_base import ForModel
from stretto.server.settings import RequestLimits

Endpoint = Callable[[Any, Request], Awaitable[Response]]
Routes = dict[str, tuple[type[BaseModel], Endpoint]]


class Lean:
    """An ASGI app in front of the app. Bodies come to it in one piece, from the guard."""

    def __init__(self, app: FastAPI, routers: Iterable[APIRouter], limits: RequestLimits) -> None:
        self._app = app
        self._routes = body_routes(routers)
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        route = self._routes.get(scope["path"]) if scope["type"] == "http" else None
        if route is None or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        model, endpoint = route
        body = await read_body(model, (await receive())["body"], self._limits)
        scope["app"] = self._app
        if isinstance(body, ForModel) and not body.model:
            body.model = self._app.state.stretto.registry.first(body.verb)
        try:
            response = await endpoint(body, Request(scope, receive))
        except ClientGone as error:
            response = Response(status_code=error.status)
        await response(scope, receive, send)


def body_routes(routers: Iterable[APIRouter]) -> Routes:
    """The endpoints of POST that take a body and the request, and nothing else, by path."""
    posts = [
        route
        for router in routers
        for route in router.routes
        if isinstance(route, APIRoute) and "POST" in (route.methods or ())
    ]
    return {
        route.path: (get_type_hints(route.endpoint)["body"], route.endpoint)
        for route in posts
        if list(inspect.signature(route.endpoint).parameters) == ["body", "request"]
    }
