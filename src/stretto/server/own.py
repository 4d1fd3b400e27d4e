"""`/stretto/…`: Stretto's own endpoints, and `/health` and `/metrics`."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from pydantic import Field
from starlette.responses import PlainTextResponse, Response

from stretto import __version__, hardware
from stretto.llm import LLM
from stretto.server import metrics
from stretto.server.adapters import choose_adapter
from stretto.server.answers import long_json
from stretto.server.callers import caller_of, require_admin
from stretto.server.errors import ApiError, Json, translate
from stretto.server.generation import begin, unless_gone
from stretto.server.lattice import StepEvents, all_of, as_dict, check_attention
from stretto.server.llama_metrics import start_header
from stretto.server.open_response import EVENTS
from stretto.server.options import check_prompts
from stretto.server.pins import listed, release
from stretto.server.prompt_ids import ids_of
from stretto.server.schema_base import Body, ModelName, Name, Number, Stop, Text, Tokens, within
from stretto.server.served_model import ServedModel
from stretto.server.state import state_of
from stretto.server.streamed import Streamed
from stretto.server.usage import cpu_seconds
from stretto.text.tokenizer import Tokenizer

router = APIRouter(tags=["Stretto"])

CallerName = Annotated[str | None, Query(max_length=64, description="Whose pin: for administrators.")]


class TokenizeRequest(Body):
    """`POST /stretto/tokenize`: text to tokens, or tokens to text."""

    model: Name
    text: Text | None = None
    tokens: Tokens | None = None
    special: bool = Field(True, description="Special tokens in the text are tokens, and BOS is added.")
    inside: bool = Field(False, description="The text stands within another: no BOS, no space in front.")


class ScoreRequest(Body):
    """`POST /stretto/score`."""

    model: Name
    text: Text | Tokens


class ParallelRequest(Body):
    """`POST /stretto/parallel`: several tokens at one position (stretto docs explanation/parallel)."""

    model: Name
    prompt: Text | Tokens
    stream: bool = False
    threshold: Annotated[Number, Field(gt=0, le=1)] | None = None
    mode: Literal["isolated", "visible"] | None = None
    max_width: Annotated[int, within("max_width")] | None = None
    combine: Literal["mixture", "best"] | None = None
    prune: Annotated[Number, within("prune")] | None = None
    prune_after: Annotated[int, within("prune_after")] | None = None
    delay: Annotated[int, within("delay")] | None = None
    temperature: Annotated[Number, within("temperature")] | None = None
    max_tokens: Annotated[int, within("max_tokens")] | None = None
    ignore_eos: bool | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=64)] | None = None
    timeout: Annotated[Number, within("timeout")] | None = None
    attention: bool | None = Field(None, description="Tell what the members of each set attend to.")


@router.get("/health")
async def health(request: Request) -> Response:
    """Health check: the server takes requests."""
    state = state_of(request)
    return Json(
        {"status": "ok", "version": __version__, "uptime": round(time.monotonic() - state.started, 1)}
    )


@router.get("/metrics")
async def prometheus(request: Request) -> Response:
    """Metrics for Prometheus; those of llama-server under its names too."""
    state = state_of(request)
    started = start_header(time.monotonic() - state.started)
    return PlainTextResponse(metrics.render(state), media_type=metrics.PROMETHEUS, headers=started)


@router.get("/stretto/hardware")
async def machine() -> Response:
    """This machine's hardware; speeds if they have been measured (`stretto devices`)."""
    return Json(asdict(await asyncio.to_thread(hardware.probe, False)))


@router.get("/stretto/stats")
async def stats(request: Request) -> Response:
    """The models, their memory, and the counters of their engines and caches."""
    state = state_of(request)
    registry = state.registry
    return Json(
        {
            "uptime": round(time.monotonic() - state.started, 3),
            "requests": state.traffic.active,
            "generations": len(state.generations),
            "cpu": cpu_seconds(),
            "memory": {"loaded": registry.loaded_bytes, "limit": registry.limit, "unloads": registry.unloads},
            "models": {name: await _stats(served) for name, served in registry.models.items()},
        }
    )


async def _stats(served: ServedModel) -> dict[str, Any]:
    llm = served.llm
    facts: dict[str, Any] = {
        "loaded": llm is not None,
        "need": served.need,
        "users": served.users,
        "loads": served.loads,
        "load_seconds": served.load_seconds,
        **{key: served.facts[key] for key in ("architecture", "parameters", "formats")},
    }
    if served.done:
        facts["tasks"] = {"inputs": dict(served.done), "seconds": dict(served.seconds)}
    if isinstance(llm, LLM):
        facts["context_length"] = llm.context_length
        facts["engine"] = llm.metrics.as_dict()
        facts["cache"] = asdict(await asyncio.to_thread(llm.cache.stats))
    return facts


@router.get("/stretto/pins")
async def pins(request: Request, model: ModelName) -> Response:
    """The prompts that the caller has pinned in a model's cache (`cache_pin`); all of them for an admin."""
    served = state_of(request).registry.find(model)
    return Json({"model": model, "pins": listed(served, caller_of(request))})


@router.delete("/stretto/pins/{name}")
async def unpin(name: str, request: Request, model: ModelName, caller: CallerName = None) -> Response:
    """Release a pinned prompt; an admin may release another caller's."""
    served, own = state_of(request).registry.find(model), caller_of(request).name
    if caller not in (None, own):
        require_admin(request)
    await asyncio.to_thread(release, served, own if caller is None else caller, name)
    return Json({"model": model, "released": name})


@router.post("/stretto/tokenize")
async def tokenize(body: TokenizeRequest, request: Request) -> Response:
    """Text to tokens, or tokens to text."""
    state = state_of(request)
    if (body.text is None) == (body.tokens is None):
        raise ApiError(400, "give either text or tokens", param="text")
    check_prompts(
        "text" if body.text is not None else "tokens", [body.text or body.tokens or ""], state.settings.limits
    )
    generation = await begin(state, body.model, request)
    try:
        tokenizer = generation.lease.llm.tokenizer
        answer = await asyncio.to_thread(_tokenized, tokenizer, body)
    finally:
        generation.close()
    return await long_json(
        {"model": body.model, **answer, "timings": generation.spent()}, 2 * answer["count"]
    )


def _tokenized(tokenizer: Tokenizer, body: TokenizeRequest) -> dict[str, Any]:
    if body.text is None:
        ids = body.tokens or []
    else:
        ids = tokenizer.encode_inside(body.text) if body.inside else tokenizer.encode(body.text, body.special)
    text = tokenizer.decode(ids, special=body.special)
    return {"tokens": ids, "pieces": pieces_of(tokenizer, ids), "text": text, "count": len(ids)}


def pieces_of(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    """The text of each token; to be called in a thread."""
    known = {token: tokenizer.spelled(token) for token in set(ids)}
    return [known[token] for token in ids]


@router.post("/stretto/score")
async def score(body: ScoreRequest, request: Request) -> Response:
    """The log-probability of each token of a text after its first, given those before it."""
    state = state_of(request)
    check_prompts("text", [body.text], state.settings.limits)
    generation = await begin(state, body.model, request)
    try:
        llm = generation.lease.llm
        ids = await asyncio.to_thread(ids_of, llm, body.text)
        scores = await unless_gone(request, llm.ascore(ids, adapter=generation.lease.adapter))
        pieces = await asyncio.to_thread(pieces_of, llm.tokenizer, ids)
    except Exception as error:
        raise translate(error, "text") from error
    finally:
        generation.close()
    logprobs = [max(-9999.0, float(number)) for number in scores]
    answer = {
        "model": body.model,
        "tokens": ids,
        "pieces": pieces,
        "logprobs": [None, *logprobs],
        "total": sum(logprobs),
        "usage": {"prompt_tokens": len(ids), "total_tokens": len(ids)},
        "timings": generation.spent(),
    }
    return await long_json(answer, 3 * len(ids))


@router.post("/stretto/parallel")
async def parallel(body: ParallelRequest, request: Request) -> Response:
    """Continue a text and keep every token that is probable enough; with `stream`, step by step."""
    state = state_of(request)
    check_prompts("prompt", [body.prompt], state.settings.limits)
    options = body.model_dump(exclude={"model", "prompt", "stream"}, exclude_none=True)
    generation = await begin(state, body.model, request)
    try:
        left = generation.left
        options["timeout"] = min(options.get("timeout", left), left)
        choose_adapter(options, generation.lease)
        options["cache_salt"] = generation.caller.salt or None
        if options.pop("attention", False):
            check_attention(generation.lease.llm, body.prompt, options)
            options["attention"] = "mean"
        generation.texts = generation.lease.llm.aparallel(body.prompt, stream=True, **options)
        if body.stream:
            # An invalid request fails in the first step, before the answer has started.
            first = await unless_gone(request, anext(generation.texts, None))
            return Streamed(generation, all_of(first, generation.texts), StepEvents(generation), EVENTS)
        text = await unless_gone(request, generation.texts.result())
        await generation.finish()
        answer = {"model": body.model, **as_dict(text, generation.lease.llm.tokenizer)}
        answer["timings"] = {**answer["timings"], **generation.spent()}
        generation.close()
        return Json(answer)
    except BaseException as error:
        generation.close()
        if isinstance(error, Exception):
            raise translate(error, "prompt") from error
        raise
