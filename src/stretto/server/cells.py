"""`/stretto/cells`: a snapshot of a model's cells, and what is in one of them."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from stretto.engine.copying import as_data
from stretto.llm import LLM
from stretto.server.answers import long_json
from stretto.server.callers import caller_of
from stretto.server.errors import ApiError, Json
from stretto.server.reading import soon
from stretto.server.running import owned
from stretto.server.schema_base import ModelName
from stretto.server.state import state_of

router = APIRouter(tags=["Stretto"])


@router.get("/stretto/cells")
async def cells(request: Request, model: ModelName) -> Response:
    """A snapshot of a model's cells: those in use with position and token, and the sequences.

    Only an admin sees those of other callers.
    """
    state, caller = state_of(request), caller_of(request)
    llm = state.registry.find(model).llm
    if not isinstance(llm, LLM):
        return Json({"model": model, "loaded": False, "cells": 0, "free": 0, "used": [], "sequences": []})
    copied = await soon(llm, llm.cells.copied())
    is_shown = None if caller.admin else owned(state, caller, copied.salts)
    snapshot = await asyncio.to_thread(as_data, copied, is_shown)
    return await long_json({"model": model, "loaded": True, **snapshot}, 4 * len(snapshot["used"]))


@router.get("/stretto/cells/at")
async def cell_at(
    request: Request, model: ModelName, cell: Annotated[int, Query(ge=0, lt=1 << 30)]
) -> Response:
    """A cell's position, token and sequences; of others' cells only that they are in use."""
    state = state_of(request)
    llm = state.registry.find(model).llm
    if not isinstance(llm, LLM) or cell >= len(llm.cells):
        n = len(llm.cells) if isinstance(llm, LLM) else 0
        raise ApiError(404, f"{model} has no cell {cell}; it has {n:,}", param="cell", code="not_found")
    found = await soon(llm, llm.cells.at(cell))
    caller = caller_of(request)
    is_mine = owned(state, caller, found.salts)
    shown = sorted(i for i in found.states if caller.admin or is_mine(i))
    token = found.token if shown else None
    return Json(
        {
            "model": model,
            "cell": cell,
            "used": bool(found.states),
            "position": found.position if shown else None,
            "token": token,
            "piece": None if token is None else llm.tokenizer.spelled(token),
            "sequences": [{"id": i, "state": found.states[i], "mine": is_mine(i)} for i in shown],
        }
    )
