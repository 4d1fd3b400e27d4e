"""The ASGI app: routes, error handlers, the guard around them, startup and shutdown."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.routing import APIRoute
from starlette.responses import HTMLResponse, Response

from stretto import __version__
from stretto.server import aliases, cohere
from stretto.server.anthropic import endpoints as anthropic
from stretto.server.generation import kept, streams
from stretto.server.http import docs
from stretto.server.http.docs import describe
from stretto.server.http.errors import install
from stretto.server.http.guard import Guard, TextLines
from stretto.server.http.logs import LastLines
from stretto.server.http.registry import Opener
from stretto.server.http.state import State
from stretto.server.llama_cpp import endpoints as llama_server
from stretto.server.llama_cpp import models as llama_models
from stretto.server.ollama import create
from stretto.server.ollama import endpoints as ollama
from stretto.server.ollama import models as ollama_models
from stretto.server.openai import batches, responses, speech
from stretto.server.openai import endpoints as openai
from stretto.server.openai.batch_store import BatchStore
from stretto.server.own import cells, live, pages, requests, sequences, tasks
from stretto.server.own import endpoints as own
from stretto.server.own import models as model_admin
from stretto.server.settings import Settings
from stretto.weights.hub.store import Store

DESCRIPTION = (
    "Language models on your own machine: the endpoints of OpenAI, Anthropic and Ollama, and our own. "
    "Fields that are not listed are refused; every answer carries its timings."
)
ROUTERS = (
    openai.router,
    responses.router,
    batches.router,
    anthropic.router,
    speech.router,
    tasks.router,
    cohere.router,
    ollama.router,
    ollama_models.router,
    create.router,
    aliases.llama_router,
    llama_server.router,
    llama_models.router,
    openai.info_router,
    kept.router,
    aliases.router,
    own.router,
    model_admin.router,
    cells.router,
    requests.router,
    sequences.router,
    streams.router,
    live.router,
)
PULL_SECONDS = 5.0  # for a download to end at shutdown
JOB_SECONDS = 5.0  # for responses in the background
ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"description": "A field is wrong; `error.param` names it."},
    401: {"description": "The API key is missing or wrong."},
    403: {"description": "Only an administrator may do this."},
    404: {"description": "There is no such model."},
    413: {"description": "The body is too large."},
    429: {"description": "Too many requests; Retry-After says when to retry."},
    503: {"description": "The model is not available; Retry-After says when to retry."},
}


class Api(FastAPI):
    """FastAPI, with a description of every field in its OpenAPI document."""

    def openapi(self) -> dict[str, Any]:
        """The document, made once."""
        if self.openapi_schema is None:
            self.openapi_schema = describe(super().openapi())
        return self.openapi_schema


def create_app(settings: Settings, opener: Opener | None = None) -> Guard:
    """The ASGI app of a server. `opener` loads models from entries, for tests.

    >>> app = create_app(Settings((ModelEntry.parse("smollm2"),)))
    """
    state = State(settings, opener)
    lines = LastLines(TextLines())

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        lines.attach()
        idle = settings.idle_seconds
        watch = None if idle is None else asyncio.create_task(state.registry.unload_idle(idle))
        app.state.batches.start(app)
        yield
        await app.state.batches.end()
        lines.detach()
        if watch is not None:
            watch.cancel()
        state.cancel_all()
        await state.wait_for_jobs(JOB_SECONDS)
        if state.pull is not None:
            await state.pull.wait(PULL_SECONDS)
        await state.registry.close()

    app = Api(
        title="Stretto",
        version=__version__,
        description=DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        responses=ERRORS,
        separate_input_output_schemas=False,
    )
    app.state.stretto = state
    app.state.live = live.Live(state, lines)
    for router in ROUTERS:
        app.include_router(router)
    app.include_router(pages.router)

    @app.get("/docs", include_in_schema=False)
    async def page(request: Request) -> Response:
        """This API, for people."""
        return HTMLResponse(docs.page(app.openapi()), headers={"content-security-policy": docs.POLICY})

    install(app)
    folder = (
        Store.default().home / "batches" / str(settings.port)
    )  # of servers at one port, of one after the other
    app.state.batches = batches.Batches(state, BatchStore(folder, settings.limits))
    paths = frozenset(
        route.path for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)
    )
    return Guard(app, state, paths, frozenset(pages.files()))
