"""`/stretto/models` and `/stretto/catalogue`: models listed, loaded, unloaded, fetched and looked into."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from stretto.server.callers import caller_of, require_admin
from stretto.server.errors import ApiError, Json, translate
from stretto.server.event_stream import EventStream
from stretto.server.generation import unless_gone
from stretto.server.model_facts import catalogue, disk_free, facts_of, inspect, require_backend
from stretto.server.pulls import Pull, source_of
from stretto.server.registry import Registry
from stretto.server.schema_base import Body, ModelName, Name
from stretto.server.served_model import ServedModel
from stretto.server.settings import ModelEntry
from stretto.server.state import state_of

router = APIRouter(tags=["Models"])

NewName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


class ModelRequest(Body):
    """`POST /stretto/models/load`, `unload` and `remove`."""

    model: Name


class PullRequest(Body):
    """`POST /stretto/models/pull`."""

    source: Name = Field(description="A name of /stretto/catalogue, or hf:org/repo:Q4_K_M.")
    name: NewName | None = Field(None, description="Its name in requests; the source, if not given.")


class CopyRequest(Body):
    """`POST /stretto/models/copy`."""

    model: Name
    name: NewName = Field(description="The name of the copy.")
    backend: Name = Field(description="What is to run it: a backend that /stretto/models/inspect lists.")


@router.get("/stretto/models")
async def models(request: Request) -> Response:
    """The models, loaded or not, and the memory they share."""
    state, admin = state_of(request), caller_of(request).admin
    registry = state.registry
    return Json(
        {
            "models": [facts_of(served, state.settings, admin) for served in registry.models.values()],
            "memory": _memory(registry),
            "admin": admin,
        }
    )


@router.post("/stretto/models/load")
async def load(body: ModelRequest, request: Request) -> Response:
    """Load a model now; others that are not in use are unloaded if it needs their memory."""
    require_admin(request)
    state = state_of(request)
    try:
        served = await unless_gone(request, state.registry.load(body.model))
    except Exception as error:
        raise translate(error, "model") from error
    return Json({"model": facts_of(served, state.settings, True), "memory": _memory(state.registry)})


@router.post("/stretto/models/unload")
async def unload(body: ModelRequest, request: Request) -> Response:
    """Unload a model that is not in use."""
    require_admin(request)
    state = state_of(request)
    served = state.registry.find(body.model)
    if not await state.registry.unload(body.model):
        raise _in_use(served)
    return Json({"model": facts_of(served, state.settings, True), "memory": _memory(state.registry)})


@router.post("/stretto/models/remove")
async def remove(body: ModelRequest, request: Request) -> Response:
    """Serve a model no more that was added while the server runs. Its file stays."""
    require_admin(request)
    registry = state_of(request).registry
    served = registry.find(body.model)
    if not await registry.remove(body.model):
        raise _in_use(served)
    return Json({"removed": body.model, "memory": _memory(registry)})


@router.post("/stretto/models/copy")
async def copy(body: CopyRequest, request: Request) -> Response:
    """Serve a model once more, run by another backend, to compare them."""
    require_admin(request)
    state = state_of(request)
    served = state.registry.find(body.model)
    await asyncio.to_thread(require_backend, served, body.backend)
    made = await state.registry.add(replace(served.entry, name=body.name, backend=body.backend))
    return Json({"model": facts_of(made, state.settings, True), "memory": _memory(state.registry)})


@router.post("/stretto/models/pull")
async def pull(body: PullRequest, request: Request) -> Response:
    """Fetch a model and serve it: events with the progress, then `done` with its name."""
    require_admin(request)
    source = source_of(body.source)
    started = Pull(state_of(request), ModelEntry(body.name or source, source))
    return EventStream(started.events(), started.stop)


@router.get("/stretto/models/inspect")
async def look_into(request: Request, model: ModelName) -> Response:
    """A model in detail: memory by part, formats, template, metadata, and the backends that can run it."""
    require_admin(request)
    served = state_of(request).registry.find(model)
    return Json(await asyncio.to_thread(inspect, served))


@router.get("/stretto/catalogue")
async def known(request: Request) -> Response:
    """The models that can be fetched by name, and those that are in the store already."""
    require_admin(request)
    registry = state_of(request).registry
    listing = await asyncio.to_thread(catalogue, registry)
    free = await asyncio.to_thread(disk_free)
    return Json({"models": listing, "memory": _memory(registry), "disk_free": free})


def _memory(registry: Registry) -> dict[str, Any]:
    return {"loaded": registry.loaded_bytes, "limit": registry.limit}


def _in_use(served: ServedModel) -> ApiError:
    return ApiError(
        409,
        f"{served.name} is in use by {served.users} requests; wait for them or cancel them",
        param="model",
        code="in_use",
    )
