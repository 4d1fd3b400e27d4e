"""`/props` and `/slots`: what llama-server's clients read about the model and the requests."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from stretto.llm import LLM
from stretto.server.errors import Json
from stretto.server.llama_answers import settings_of
from stretto.server.llama_schemas import NativeSampling
from stretto.server.served_model import ServedModel, context_of
from stretto.server.shapes import FINGERPRINT
from stretto.server.state import State, state_of

router = APIRouter(tags=["llama-server"])

OptionalName = Annotated[
    str | None, Query(max_length=256, description="A model; without it, the first that generates.")
]


@router.get("/props")
async def props(request: Request, model: OptionalName = None) -> Response:
    """Properties of a model, as llama-server names them; it need not be loaded."""
    state = state_of(request)
    served = _served(state, model)
    defaults = dict(state.settings.defaults)
    params = settings_of(NativeSampling.model_validate({}), defaults, frozenset())
    params["seed"] = defaults.get("seed", -1)
    facts = {
        "default_generation_settings": {"n_ctx": context_of(served, state.settings), "params": params},
        "total_slots": state.settings.max_running,
        "model_alias": served.name,
        "model_path": served.path.name,
        "modalities": {"vision": served.facts["vision"], "audio": False},
        "chat_template": served.facts["template"],
        "build_info": FINGERPRINT,
        "is_sleeping": served.llm is None,
    }
    if isinstance(served.llm, LLM):
        tokenizer = served.llm.tokenizer
        for name, token in (("bos_token", tokenizer.bos_id), ("eos_token", tokenizer.eos_id)):
            facts[name] = "" if token is None else tokenizer.spelled(token)
    return Json(facts)


@router.get("/slots")
async def slots(request: Request, model: OptionalName = None) -> Response:
    """Room for requests that run at once; as many entries are processing as requests of the model run."""
    state = state_of(request)
    served = _served(state, model)
    n_running = sum(generation.model == served.name for generation in state.generations)
    context = context_of(served, state.settings)
    entries: list[dict[str, Any]] = [
        {"id": number, "n_ctx": context, "speculative": False, "is_processing": number < n_running}
        for number in range(state.settings.max_running)
    ]
    return Json(entries)


def _served(state: State, name: str | None) -> ServedModel:
    return state.registry.find(name or state.registry.first("generate"))
