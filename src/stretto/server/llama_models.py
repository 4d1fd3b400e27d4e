"""`/models/load`, `/models/unload`, `/lora-adapters`: models and adapters, as llama-server manages them."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from pydantic import Field, GetCoreSchemaHandler, RootModel
from pydantic_core import CoreSchema
from starlette.responses import Response

from stretto.server.adapters import numbered
from stretto.server.callers import require_admin
from stretto.server.errors import ApiError, Json
from stretto.server.schema_base import Body, Name, NumberedAdapters, fail_fast
from stretto.server.served_model import ServedModel
from stretto.server.state import State, state_of

router = APIRouter(tags=["llama-server"])
log = logging.getLogger("stretto.server")
_loading: set[asyncio.Task[None]] = set()  # a loop holds its tasks weakly


class NamedModel(Body):
    """`POST /models/load` and `/models/unload`."""

    model: Name = Field(description="Name of a model.")


class AdapterScales(RootModel[NumberedAdapters]):
    """`POST /lora-adapters`: adapters by number, with a scale for each."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """The schema, with a list that fails fast."""
        schema = handler(source)
        fail_fast(schema)
        return schema


@router.post("/models/load")
async def load(body: NamedModel, request: Request) -> Response:
    """Start to load a model; `status` in `/models` says when it is loaded. For administrators."""
    require_admin(request)
    state = state_of(request)
    served = state.registry.find(body.model)
    if served.llm is not None:
        raise ApiError(400, f"{served.name} is loaded", param="model", code="invalid_value")
    task = asyncio.create_task(_load(state, served.name))
    _loading.add(task)
    task.add_done_callback(_loading.discard)
    await asyncio.sleep(0)  # it has begun
    return Json({"success": True})


@router.post("/models/unload")
async def unload(body: NamedModel, request: Request) -> Response:
    """Unload a model that is not in use. For administrators."""
    require_admin(request)
    registry = state_of(request).registry
    served = registry.find(body.model)
    if served.llm is None and served.loading is None:
        raise ApiError(400, f"{served.name} is not loaded", param="model", code="invalid_value")
    if not await registry.unload(served.name):
        raise ApiError(409, f"{served.name} is in use", param="model", code="in_use")
    return Json({"success": True})


@router.get("/lora-adapters")
async def adapters(request: Request) -> Response:
    """The adapters of the first model, and the scales that requests without `lora` get."""
    served = _first(state_of(request))
    return Json(
        [
            {"id": number, "name": name, "path": Path(path).name, "scale": served.scales.get(name, 0.0)}
            for number, (name, path) in enumerate(served.entry.adapters)
        ]
    )


@router.post("/lora-adapters")
async def scale_adapters(body: AdapterScales, request: Request) -> Response:
    """Set the adapters of requests without `lora` to the first model, for administrators; others get 0."""
    require_admin(request)
    served = _first(state_of(request))
    served.scales = numbered(body.root, served)
    return Json({"success": True})


def _first(state: State) -> ServedModel:
    return state.registry.find(state.registry.first("generate"))


async def _load(state: State, name: str) -> None:
    try:
        await state.registry.load(name)
    except Exception as error:  # nobody waits for it; the next request for the model gets it again
        log.error("%s could not be loaded: %s", name, error)
