"""`/api/tags`, `show`, `ps`, `pull`, `copy`, `delete`, `version`: models for Ollama's clients."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from datetime import datetime, timezone
from typing import Any

from fastapi import Request
from starlette.responses import Response

from stretto import __version__
from stretto.server.http.bodies import make_router
from stretto.server.http.errors import ApiError, Json, field_error
from stretto.server.http.pulls import Pull, check_source
from stretto.server.http.served_model import ServedModel, list_capabilities
from stretto.server.http.state import State, get_state, require_admin
from stretto.server.http.streaming import LINES, ValueStream
from stretto.server.ollama.schemas import DeleteRequest, OllamaCopyRequest, OllamaPullRequest, ShowRequest
from stretto.server.ollama.store import Made, MadeModels, add_tag, plain, rebase
from stretto.server.settings import ModelEntry
from stretto.weights import hub
from stretto.weights.folder import open_weights

OLLAMA_VERSION = "0.13.0"  # of Ollama's API that is followed here; clients compare it
NEVER = "9999-12-31T23:59:59Z"  # models stay until their memory is needed
ARRAYS = ("tokens", "token_type", "scores", "merges")  # of a vocabulary: shown as null

router = make_router("Ollama")


@router.get("/api/version")
async def version() -> Response:
    """The version of Ollama's API that is followed, and Stretto's."""
    return Json({"version": OLLAMA_VERSION, "stretto": __version__})


@router.get("/api/tags")
async def tags(request: Request) -> Response:
    """The models that are served, and those made from them."""
    state = get_state(request)
    digests = await asyncio.to_thread(_digests)
    return Json({"models": [_listed(made, served, digests) for made, served in _all(state)]})


@router.get("/api/ps")
async def ps(request: Request) -> Response:
    """The models that are loaded."""
    state = get_state(request)
    digests = await asyncio.to_thread(_digests)
    loaded = [served for served in state.registry.models.values() if served.llm is not None]
    return Json({"models": [_running(served, digests) for served in loaded]})


@router.post("/api/show")
async def show(body: ShowRequest, request: Request) -> Response:
    """Details of a model."""
    state = get_state(request)
    served, made = state.part(MadeModels).resolve(body.wanted, state.registry)
    facts = served.facts
    return Json(
        {
            "modelfile": _modelfile(made),
            "parameters": _parameters(made),
            "template": made.template or facts["template"],
            "system": made.system,
            "license": made.license or facts["license"],
            "details": details(served, made),
            "model_info": await asyncio.to_thread(_model_info, served),
            "capabilities": list_capabilities(served),
            "modified_at": write_time(facts["modified"]),
        }
    )


@router.post("/api/pull")
async def pull(body: OllamaPullRequest, request: Request) -> Response:
    """Fetch a model, and serve it."""
    require_admin(request)
    state, name = get_state(request), plain(body.wanted)
    if name in state.registry.models or name in state.part(MadeModels).all():
        return await progress_response(statuses("pulling manifest", "success"), body.stream)
    source = check_source(re.sub(r"^(https?://)?(hf\.co|huggingface\.co)/", "", name))
    started = Pull(state, ModelEntry(name, source))
    return await progress_response(_progress(started), body.stream, started)


@router.post("/api/copy")
async def copy(body: OllamaCopyRequest, request: Request) -> Response:
    """Give a model one more name."""
    require_admin(request)
    state = get_state(request)
    _, base = state.part(MadeModels).resolve(body.source, state.registry)
    require_new(state, plain(body.destination))
    name = plain(body.destination)
    await asyncio.to_thread(state.part(MadeModels).add, rebase(Made(name, base.base), name, base))
    return Response(status_code=200)


@router.delete("/api/delete")
async def delete(body: DeleteRequest, request: Request) -> Response:
    """Delete a model that was made here, or fetched by the server; its file goes too."""
    require_admin(request)
    state, name = get_state(request), plain(body.wanted)
    if name not in state.registry.models and await asyncio.to_thread(state.part(MadeModels).remove, name):
        return Response(status_code=200)
    served = state.registry.find(name)
    if not await state.registry.remove(name):
        raise ApiError(409, f"{name} is in use; wait for its requests", param="model", code="in_use")
    await asyncio.to_thread(state.part(MadeModels).remove, name)
    source = served.entry.source
    if any(other.entry.source == source for other in state.registry.models.values()):
        return Response(status_code=200)  # another served model has the same file
    if any(model.name == source for model in await asyncio.to_thread(hub.models)):
        await asyncio.to_thread(hub.remove, source)
    return Response(status_code=200)


def details(served: ServedModel, made: Made | None = None) -> dict[str, Any]:
    """The short description of a model."""
    facts = served.facts
    formats = [name for name in facts["formats"] if name != "F32"] or ["F32"]
    return {
        "parent_model": "" if made is None or made.name == made.base else made.base,
        "format": "gguf",
        "family": facts["architecture"],
        "families": [facts["architecture"]],
        "parameter_size": _size(facts["parameters"]),
        "quantization_level": formats[0],
    }


def write_time(seconds: float) -> str:
    """A time as Ollama's clients read it."""
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat()


def _all(state: State) -> list[tuple[Made, ServedModel]]:
    models, made_here = state.registry.models, state.part(MadeModels).all()
    own = [(Made(name, name), served) for name, served in models.items() if name not in made_here]
    return own + [(made, models[made.base]) for made in made_here.values() if made.base in models]


def _listed(made: Made, served: ServedModel, digests: dict[str, str]) -> dict[str, Any]:
    return {
        "name": add_tag(made.name),
        "model": add_tag(made.name),
        "modified_at": write_time(served.facts["modified"]),
        "size": served.facts["file_bytes"],
        "digest": digests.get(served.entry.source, ""),
        "details": details(served, made),
    }


def _running(served: ServedModel, digests: dict[str, str]) -> dict[str, Any]:
    listed = _listed(Made(served.name, served.name), served, digests)
    del listed["modified_at"]
    on_gpu = getattr(getattr(served.llm, "route", None), "device", "cpu") == "cuda"
    return {
        **listed,
        "size": served.need,
        "size_vram": served.need if on_gpu else 0,
        "expires_at": NEVER,
        "context_length": getattr(served.llm, "context_length", 0),
    }


def _digests() -> dict[str, str]:
    """The hashes of the files in the store, by the models' names."""
    return {model.name: model.sha256 for model in hub.models()}


def _model_info(served: ServedModel) -> dict[str, Any]:
    """The metadata of a file; arrays are null, as Ollama shows them."""
    if served.is_task:
        return {"general.architecture": served.facts["architecture"]}
    info: dict[str, Any] = {}
    with open_weights(served.path) as file:
        for key, value in file.metadata.items():
            if key.startswith("tokenizer.chat_template"):
                continue
            is_plain = isinstance(value, (bool, int, str)) or (isinstance(value, float) and value == value)
            info[key] = value if is_plain and value not in (float("inf"), float("-inf")) else None
    info["general.parameter_count"] = served.facts["parameters"]
    return info


def _modelfile(made: Made) -> str:
    lines = [f"FROM {made.base}"]
    if made.template:
        lines.append(f'TEMPLATE """{made.template}"""')
    if made.system:
        lines.append(f'SYSTEM """{made.system}"""')
    lines += [f"PARAMETER {line}" for line in _parameters(made).splitlines()]
    return "\n".join(lines) + "\n"


def _parameters(made: Made) -> str:
    """Parameters as Ollama lists them: a line for each value."""
    lines = []
    for name, value in made.parameters.items():
        for one in value if isinstance(value, list) else [value]:
            lines.append(f"{name:30} {one!r}" if isinstance(one, str) else f"{name:30} {one}")
    return "\n".join(lines)


def require_new(state: State, name: str) -> None:
    """Raise if a served model has this name."""
    if name in state.registry.models:
        raise field_error(
            "model", f"{name} is the name of a served model; give another", "name_taken", status=409
        )


async def _progress(started: Pull) -> AsyncIterator[dict[str, Any]]:
    yield {"status": "pulling manifest"}
    async for event in started.events():
        if "done" in event:
            yield {"status": "success"}
        elif "error" in event:
            yield {"error": event["error"]["message"]}
        else:
            yield {
                "status": f"pulling {event['status']}",
                "total": event["total"],
                "completed": event["completed"],
            }


async def statuses(*texts: str) -> AsyncIterator[dict[str, Any]]:
    """Progress of work that is done at once."""
    for text in texts:
        yield {"status": text}


async def progress_response(
    values: AsyncIterator[dict[str, Any]], stream: bool | None, started: Pull | None = None
) -> Response:
    """Progress as lines, or its last value; `started` is the work that it is about."""
    if stream is not False:
        return ValueStream(values, (lambda: None) if started is None else started.stop, LINES)
    last = [value async for value in values][-1]
    if "error" in last:
        known = None if started is None else started.error
        raise known or ApiError(503, last["error"], code="model_unavailable")
    return Json(last)


def _size(n: int) -> str:
    return f"{n / 1e9:.1f}B" if n >= 1e9 else f"{n / 1e6:.0f}M"
