"""`/stretto/models` and `/stretto/catalogue`: models listed, loaded, unloaded, fetched and looked into."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from fastapi import Request
from pydantic import Field
from starlette.responses import Response

from stretto.errors import InvalidRequest, StrettoError
from stretto.llm import LLM
from stretto.loading.open import list_alternatives
from stretto.models import read_spec
from stretto.models.summary import in_words
from stretto.server.generation.fields import Body, ModelName, Name
from stretto.server.generation.generation import unless_gone
from stretto.server.http.bodies import make_router
from stretto.server.http.errors import ApiError, Json, field_error, translate
from stretto.server.http.pulls import Pull, check_source
from stretto.server.http.registry import Registry
from stretto.server.http.served_model import TASK_FACTOR, WORKING_BYTES, ServedModel, find_context_length
from stretto.server.http.state import get_caller, get_state, require_admin
from stretto.server.http.streaming import ValueStream
from stretto.server.settings import ModelEntry, Settings
from stretto.text.reasoning import find_format
from stretto.weights import hub
from stretto.weights.folder import open_weights
from stretto.weights.gguf import GGUF
from stretto.weights.hub.catalogue import PackagedModel
from stretto.weights.hub.store import Model

# What a server tells of its models: those it serves, one in detail, and those that can be fetched.

MAX_VALUE_CHARS = 200  # of a value in the metadata that is shown
MAX_KEYS = 200
MAX_TEMPLATE_CHARS = 100_000

# Parts of a model by their tensors' names, the first that fits; the rest is "other".
PARTS = (
    ("experts", ("_exps",)),
    ("attention", ("attn", "ssm", "shortconv")),
    ("feed-forward", ("ffn",)),
    ("embeddings", ("token_embd", "per_layer", "position_embd", "token_types")),
    ("output", ("output",)),
)


def describe_model(served: ServedModel, settings: Settings, with_source: bool) -> dict[str, Any]:
    """A model of the list; where it comes from is for administrators."""
    facts, llm = served.facts, served.llm
    route, encoder = getattr(llm, "route", None), getattr(llm, "vision", None)
    backend = getattr(getattr(llm, "backend", None), "name", None)
    defaults = {**getattr(llm, "defaults", {}), **settings.defaults}
    return {
        "name": served.name,
        "source": served.entry.source if with_source else None,
        "added": served.added,
        "loaded": llm is not None,
        "loading": served.loading is not None,
        "need": served.need,
        "users": served.users,
        "verbs": list(facts["verbs"] if llm is None else llm.verbs),
        "takes": getattr(llm, "takes", None),  # "image", "text", "bytes" or "audio" of a loaded task model
        "architecture": facts["architecture"],
        "parameters": facts["parameters"],
        "formats": facts["formats"],
        "context_length": find_context_length(served, settings),
        "vision": encoder is not None and not encoder.hears if isinstance(llm, LLM) else facts["vision"],
        "audio": encoder is not None and encoder.hears if isinstance(llm, LLM) else facts["audio"],
        "template": llm.has_template if isinstance(llm, LLM) else bool(facts["template"]),
        "thinking": find_format(facts["template"]) is not None,
        "defaults": {name: value for name, value in defaults.items() if isinstance(value, (int, float))},
        "license": facts["license"],
        "file_bytes": facts["file_bytes"],
        "backend": backend or served.entry.backend or settings.backend,
        "device": settings.device if route is None else route.device,
    }


def inspect(served: ServedModel) -> dict[str, Any]:
    """A model in detail: memory by part, formats, template, metadata, and the backends that can run it."""
    made: dict[str, Any] = {
        "model": served.name,
        "source": served.entry.source,
        "file": served.path.name,
        "need": served.need,
        "memory": served.facts["memory"],
        "formats": served.facts["formats"],
        "license": served.facts["license"],
        "template": served.facts["template"][:MAX_TEMPLATE_CHARS],
        "words": "",
        "parts": {},
        "metadata": {},
        "backends": [],
    }
    if served.is_task:
        return made
    with open_weights(served.path) as file:
        made["words"] = in_words(read_spec(file))
        made["parts"] = _parts(file)
        made["metadata"] = _metadata(file)
    made["backends"] = _backends(served)
    return made


def require_backend(served: ServedModel, backend: str) -> None:
    """Raise unless a backend can run a model."""
    states = {} if served.is_task else {one.backend: one for one in list_alternatives(served.path)}
    if (option := states.get(backend)) is None or option.state == "refused":
        reason = f": {option.reason}" if option else f"; there are {', '.join(states) or 'none to choose'}"
        raise InvalidRequest(f"{served.name} cannot run on {backend}{reason}", param="backend", value=backend)


def catalogue(registry: Registry) -> list[dict[str, Any]]:
    """The models that can be fetched, and those in the store; whether each fits into the models' memory."""
    stored = {model.name: model for model in hub.models()}
    served = {served.entry.source: served.name for served in registry.models.values()}
    known: dict[str, PackagedModel | Model] = {**stored, **hub.packaged_models()}
    return [
        {
            "source": name,
            "summary": entry.path.name if isinstance(entry, Model) else entry.summary,
            "verbs": [] if isinstance(entry, Model) else list(entry.verbs),
            "bytes": entry.nbytes,
            "license": entry.license,
            "license_url": entry.license_url,
            "here": name in stored,
            "served": served.get(name),
            "fits": _need(entry) <= registry.limit,
        }
        for name, entry in known.items()
    ]


def disk_free() -> int | None:
    """Bytes that are free where models are kept; None if that cannot be told."""
    place: Path = hub.Store.default().home
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        return shutil.disk_usage(place).free
    except OSError:
        return None


def _need(entry: PackagedModel | Model) -> int:
    """The least bytes that a model takes when it is loaded, by its files' size; a cache comes on top."""
    factor = TASK_FACTOR if isinstance(entry, PackagedModel) and entry.kind == "task" else 1
    return factor * entry.nbytes + WORKING_BYTES


def _parts(file: GGUF) -> dict[str, int]:
    """The weights' bytes by part, the largest first."""
    sizes: Counter[str] = Counter()
    for name, tensor in file.tensors.items():
        part = next((part for part, signs in PARTS if any(sign in name for sign in signs)), "other")
        sizes[part] += tensor.nbytes
    return dict(sizes.most_common())


def _metadata(file: GGUF) -> dict[str, Any]:
    """The keys with short values; of long texts the beginning, of arrays the length."""
    made: dict[str, Any] = {}
    for key, value in list(file.metadata.items())[:MAX_KEYS]:
        if key.startswith("tokenizer.chat_template"):
            continue
        if isinstance(value, str):
            made[key[:MAX_VALUE_CHARS]] = value[:MAX_VALUE_CHARS]
        elif isinstance(value, (bool, int)):
            made[key[:MAX_VALUE_CHARS]] = value
        elif isinstance(value, float):
            made[key[:MAX_VALUE_CHARS]] = f"{value:g}"  # may be no number of JSON's
        else:
            made[key[:MAX_VALUE_CHARS]] = f"{len(value):,} values"
    return made


def _backends(served: ServedModel) -> list[dict[str, Any]]:
    """What runs the model, or could; speeds where they were measured."""
    route = getattr(served.llm, "route", None)
    if route is not None:
        return list(route.as_data())
    try:
        return [dict(vars(option)) for option in list_alternatives(served.path)]
    except StrettoError:
        return []


router = make_router("Models")

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
    state, admin = get_state(request), get_caller(request).admin
    registry = state.registry
    return Json(
        {
            "models": [describe_model(served, state.settings, admin) for served in registry.models.values()],
            "memory": _memory(registry),
            "admin": admin,
        }
    )


@router.post("/stretto/models/load")
async def load(body: ModelRequest, request: Request) -> Response:
    """Load a model now; others that are not in use are unloaded if it needs their memory."""
    require_admin(request)
    state = get_state(request)
    try:
        served = await unless_gone(request, state.registry.load(body.model))
    except Exception as error:
        raise translate(error, "model") from error
    return Json({"model": describe_model(served, state.settings, True), "memory": _memory(state.registry)})


@router.post("/stretto/models/unload")
async def unload(body: ModelRequest, request: Request) -> Response:
    """Unload a model that is not in use."""
    require_admin(request)
    state = get_state(request)
    served = state.registry.find(body.model)
    if not await state.registry.unload(body.model):
        raise _in_use(served)
    return Json({"model": describe_model(served, state.settings, True), "memory": _memory(state.registry)})


@router.post("/stretto/models/remove")
async def remove(body: ModelRequest, request: Request) -> Response:
    """Serve a model no more that was added while the server runs. Its file stays."""
    require_admin(request)
    registry = get_state(request).registry
    served = registry.find(body.model)
    if not await registry.remove(body.model):
        raise _in_use(served)
    return Json({"removed": body.model, "memory": _memory(registry)})


@router.post("/stretto/models/copy")
async def copy(body: CopyRequest, request: Request) -> Response:
    """Serve a model once more, run by another backend, to compare them."""
    require_admin(request)
    state = get_state(request)
    served = state.registry.find(body.model)
    await asyncio.to_thread(require_backend, served, body.backend)
    made = await state.registry.add(replace(served.entry, name=body.name, backend=body.backend))
    return Json({"model": describe_model(made, state.settings, True), "memory": _memory(state.registry)})


@router.post("/stretto/models/pull")
async def pull(body: PullRequest, request: Request) -> Response:
    """Fetch a model and serve it: events with the progress, then `done` with its name."""
    require_admin(request)
    source = check_source(body.source)
    started = Pull(get_state(request), ModelEntry(body.name or source, source))
    return ValueStream(started.events(), started.stop)


@router.get("/stretto/models/inspect")
async def look_into(request: Request, model: ModelName) -> Response:
    """A model in detail: memory by part, formats, template, metadata, and the backends that can run it."""
    require_admin(request)
    served = get_state(request).registry.find(model)
    return Json(await asyncio.to_thread(inspect, served))


@router.get("/stretto/catalogue")
async def list_known(request: Request) -> Response:
    """The models that can be fetched by name, and those that are in the store already."""
    require_admin(request)
    registry = get_state(request).registry
    listing = await asyncio.to_thread(catalogue, registry)
    free = await asyncio.to_thread(disk_free)
    return Json({"models": listing, "memory": _memory(registry), "disk_free": free})


def _memory(registry: Registry) -> dict[str, Any]:
    return {"loaded": registry.loaded_bytes, "limit": registry.limit}


def _in_use(served: ServedModel) -> ApiError:
    return field_error(
        "model",
        f"{served.name} is in use by {served.users} requests; wait for them or cancel them",
        "in_use",
        status=409,
    )
