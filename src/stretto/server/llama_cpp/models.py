"""`/models/load`, `/models/unload`, `/lora-adapters`: models and adapters, as llama-server manages them."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from fastapi import Query, Request
from pydantic import Field, GetCoreSchemaHandler, RootModel
from pydantic_core import CoreSchema
from starlette.responses import Response

from stretto.llm import LLM
from stretto.server.generation.answer import FINGERPRINT, long_json
from stretto.server.generation.chat import encode_prompt, split_prompts, unwrap_text
from stretto.server.generation.fields import Body, ForModel, Name, NumberedAdapters, fail_fast
from stretto.server.generation.generation import Generation, lease_model, unless_gone
from stretto.server.generation.options import check_prompts
from stretto.server.generation.requests import EmbeddingInput
from stretto.server.generation.vectors import Floats, Vectors, embed_texts, write_vector
from stretto.server.http.bodies import make_router
from stretto.server.http.errors import ApiError, Json, field_error, unsupported
from stretto.server.http.registry import name_adapters
from stretto.server.http.served_model import ServedModel, find_context_length
from stretto.server.http.state import State, get_state, require_admin
from stretto.server.llama_cpp.answers import list_settings
from stretto.server.llama_cpp.schemas import NativeSampling
from stretto.tasks import TaskModel

router = make_router("llama-server")
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
    state = get_state(request)
    served = state.registry.find(body.model)
    if served.llm is not None:
        raise field_error("model", f"{served.name} is loaded")
    task = asyncio.create_task(_load(state, served.name))
    _loading.add(task)
    task.add_done_callback(_loading.discard)
    await asyncio.sleep(0)  # it has begun
    return Json({"success": True})


@router.post("/models/unload")
async def unload(body: NamedModel, request: Request) -> Response:
    """Unload a model that is not in use. For administrators."""
    require_admin(request)
    registry = get_state(request).registry
    served = registry.find(body.model)
    if served.llm is None and served.loading is None:
        raise field_error("model", f"{served.name} is not loaded")
    if not await registry.unload(served.name):
        raise ApiError(409, f"{served.name} is in use", param="model", code="in_use")
    return Json({"success": True})


@router.get("/lora-adapters")
async def adapters(request: Request) -> Response:
    """The adapters of the first model, and the scales that requests without `lora` get."""
    served = _first(get_state(request))
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
    served = _first(get_state(request))
    served.scales = name_adapters(body.root, served)
    return Json({"success": True})


def _first(state: State) -> ServedModel:
    return state.registry.find(state.registry.first("generate"))


async def _load(state: State, name: str) -> None:
    try:
        await state.registry.load(name)
    except Exception as error:  # nobody waits for it; the next request for the model gets it again
        log.error("%s could not be loaded: %s", name, error)


# `/props` and `/slots`: what llama-server's clients read about the model and the requests.

OptionalName = Annotated[
    str | None, Query(max_length=256, description="A model; without it, the first that generates.")
]


@router.get("/props")
async def props(request: Request, model: OptionalName = None) -> Response:
    """Properties of a model, as llama-server names them; it need not be loaded."""
    state = get_state(request)
    served = _served(state, model)
    defaults = dict(state.settings.defaults)
    params = list_settings(NativeSampling.model_validate({}), defaults, frozenset())
    params["seed"] = defaults.get("seed", -1)
    facts = {
        "default_generation_settings": {
            "n_ctx": find_context_length(served, state.settings),
            "params": params,
        },
        "total_slots": state.settings.max_running,
        "model_alias": served.name,
        "model_path": served.path.name,
        "modalities": {"vision": served.facts["vision"], "audio": served.facts["audio"]},
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
    state = get_state(request)
    served = _served(state, model)
    n_running = sum(generation.model == served.name for generation in state.generations)
    context = find_context_length(served, state.settings)
    entries: list[dict[str, Any]] = [
        {"id": number, "n_ctx": context, "speculative": False, "is_processing": number < n_running}
        for number in range(state.settings.max_running)
    ]
    return Json(entries)


def _served(state: State, name: str | None) -> ServedModel:
    return state.registry.find(name or state.registry.first("generate"))


# `/embedding` and `/embeddings`: llama-server's own forms of vectors, for its clients.

MAX_NUMBERS = 1 << 22  # of an answer with the vectors of all tokens


class NativeEmbedding(ForModel):
    """`POST /embedding` and `/embeddings`."""

    verb: ClassVar[str] = "embed"

    input: EmbeddingInput | None = Field(None, description="The texts.")
    content: EmbeddingInput | None = Field(None, description="The texts, by their older name.")
    pooling: Literal["none", "mean", "cls", "last"] | None = Field(
        None, description='How states become a vector; "none": a vector for each token, as it is.'
    )
    embd_normalize: Literal[-1, 2] = Field(2, description="2: L2-normalise the vectors; -1: as they are.")
    encoding_format: Literal["float", "base64"] | None = "float"


@router.post("/embedding")
@router.post("/embeddings")
async def embedding(body: NativeEmbedding, request: Request) -> Response:
    """The vectors of texts, each a list of one; with `pooling` "none" of as many as there are tokens."""
    given = body.input if body.input is not None else body.content
    if given is None:
        raise field_error("input", "input: there is no text to embed", "missing_field")
    texts = [unwrap_text(one) for one in split_prompts(given)]
    check_prompts("input", texts, get_state(request).settings.limits)
    async with lease_model(request, body.model, "input", verb="embed") as generation:
        found = await unless_gone(request, _vectors(generation, texts, body))
    answer = [
        {"index": index, "embedding": [write_vector(row, body.encoding_format) for row in rows]}
        for index, rows in enumerate(found)
    ]
    return await long_json(answer, sum(rows.size for rows in found))


async def _vectors(generation: Generation, texts: list[Any], body: NativeEmbedding) -> list[Floats]:
    """float32[1, n] of each text, or float32[n_tokens, n]."""
    if body.pooling != "none":
        vectors, _ = await embed_texts(generation, texts, Vectors(body.pooling, body.embd_normalize == 2))
        return [vector[np.newaxis] for vector in vectors]
    model: Any = generation.lease.llm
    if isinstance(model, TaskModel):
        raise unsupported(f"{model.name} has no vectors of tokens", "pooling")
    ids = await asyncio.to_thread(lambda: [encode_prompt(model, text) for text in texts])
    numbers = sum(map(len, ids)) * model.spec.n_embd
    if numbers > MAX_NUMBERS:
        raise field_error(
            "input", f"input: vectors of all tokens are {numbers:,} numbers; at most {MAX_NUMBERS:,} are sent"
        )
    with generation.lease.model.count_work("embed", len(texts)):
        return list(await model.atoken_vectors(ids))
