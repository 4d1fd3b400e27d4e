"""`/stretto/…`: Stretto's own endpoints, and `/health` and `/metrics`."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from pydantic import Field
from starlette.responses import PlainTextResponse, Response

from stretto import __version__, hardware
from stretto.llm import LLM
from stretto.server import metrics
from stretto.server.adapters import choose_adapter
from stretto.server.embedding import ids_of
from stretto.server.errors import ApiError, Json, body_of, dumps, translate
from stretto.server.generation import Generation, begin, unless_gone
from stretto.server.openai import EVENTS
from stretto.server.options import check_prompts
from stretto.server.pins import release
from stretto.server.schemas import Body, Name, Number, Stop, Text, Tokens
from stretto.server.slots import Slot
from stretto.server.state import state_of
from stretto.server.streamed import Streamed

router = APIRouter(tags=["Stretto"])

HELPER_THREAD_NAME = "stretto-server"  # of the threads that run templates and tokenizers
ENGINE_THREAD_NAME = "stretto"  # of the thread that runs an engine's worker

ModelName = Annotated[str, Query(min_length=1, max_length=256)]


class TokenizeRequest(Body):
    """`POST /stretto/tokenize`: text to tokens, or tokens to text."""

    model: Name
    text: Text | None = None
    tokens: Tokens | None = None
    special: bool = Field(True, description="Special tokens in the text are tokens, and BOS is added.")


class ScoreRequest(Body):
    """`POST /stretto/score`."""

    model: Name
    text: Text | Tokens


class ParallelRequest(Body):
    """`POST /stretto/parallel`: several tokens at one position (docs/parallel.md)."""

    model: Name
    prompt: Text | Tokens
    stream: bool = False
    threshold: Annotated[Number, Field(gt=0, le=1)] | None = None
    mode: Literal["isolated", "visible"] | None = None
    max_width: Annotated[int, Field(ge=1, le=256)] | None = None
    combine: Literal["mixture", "best"] | None = None
    prune: Annotated[Number, Field(gt=0, le=100)] | None = None
    prune_after: Annotated[int, Field(ge=1, le=1 << 20)] | None = None
    temperature: Annotated[Number, Field(ge=0, le=100)] | None = None
    max_tokens: Annotated[int, Field(ge=1, lt=1 << 31)] | None = None
    ignore_eos: bool | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=64)] | None = None
    timeout: Annotated[Number, Field(gt=0, le=1e9)] | None = None


@router.get("/health")
async def health(request: Request) -> Response:
    """Health check: the server takes requests."""
    state = state_of(request)
    return Json({"status": "ok", "version": __version__, "uptime": round(time.time() - state.started, 1)})


@router.get("/metrics")
async def prometheus(request: Request) -> Response:
    """Metrics for Prometheus."""
    return PlainTextResponse(metrics.render(state_of(request)), media_type=metrics.PROMETHEUS)


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
            "uptime": round(time.time() - state.started, 3),
            "requests": state.traffic.active,
            "generations": len(state.generations),
            "cpu": cpu_seconds(),
            "memory": {"loaded": registry.loaded_bytes, "limit": registry.limit, "unloads": registry.unloads},
            "models": {name: await _stats(slot) for name, slot in registry.slots.items()},
        }
    )


def cpu_seconds() -> dict[str, float]:
    """CPU time: of the process, the event loop's thread, its helper threads, and the engines' threads.

    The last two are only known on Linux.
    """
    named = [(thread.name, thread.native_id) for thread in threading.enumerate() if thread.native_id]
    return {
        "process": time.process_time(),
        "loop": time.thread_time(),
        "helpers": sum(_seconds(number) for name, number in named if name.startswith(HELPER_THREAD_NAME)),
        "steps": sum(_seconds(number) for name, number in named if name == ENGINE_THREAD_NAME),
    }


def _seconds(thread: int) -> float:
    try:
        return int(Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[0]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


async def _stats(slot: Slot) -> dict[str, Any]:
    llm = slot.llm
    facts: dict[str, Any] = {
        "loaded": llm is not None,
        "need": slot.need,
        "users": slot.users,
        "loads": slot.loads,
        "load_seconds": slot.load_seconds,
        **{key: slot.facts[key] for key in ("architecture", "parameters", "formats")},
    }
    if slot.done:
        facts["tasks"] = {"inputs": dict(slot.done), "seconds": dict(slot.seconds)}
    if isinstance(llm, LLM):
        facts["context_length"] = llm.context_length
        facts["engine"] = llm.metrics.as_dict()
        facts["cache"] = asdict(await asyncio.to_thread(llm.cache.stats))
    return facts


@router.get("/stretto/cells")
async def cells(request: Request, model: ModelName) -> Response:
    """A snapshot of a model's cells: those in use with position and token, and the sequences."""
    slot = state_of(request).registry.find(model)
    if not isinstance(slot.llm, LLM):
        return Json({"model": model, "loaded": False, "cells": 0, "free": 0, "used": [], "sequences": []})
    snapshot = await asyncio.to_thread(slot.llm.cells.snapshot)
    return Json({"model": model, "loaded": True, **snapshot})


@router.get("/stretto/pins")
async def pins(request: Request, model: ModelName) -> Response:
    """The prompts that are pinned in a model's cache (`cache_pin`)."""
    slot = state_of(request).registry.find(model)
    return Json({"model": model, "pins": [{"name": n, "tokens": p.n_tokens} for n, p in slot.pins.items()]})


@router.delete("/stretto/pins/{name}")
async def unpin(name: str, request: Request, model: ModelName) -> Response:
    """Release a pinned prompt."""
    slot = state_of(request).registry.find(model)
    await asyncio.to_thread(release, slot, name)
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
        if body.text is not None:
            ids = await asyncio.to_thread(tokenizer.encode, body.text, body.special)
        else:
            ids = body.tokens or []
        text = tokenizer.decode(ids, special=body.special)
        pieces = [tokenizer.decode([token], special=True) for token in ids]
    finally:
        generation.close()
    answer = {"model": body.model, "tokens": ids, "pieces": pieces, "text": text, "count": len(ids)}
    return Json({**answer, "timings": generation.spent()})


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
        pieces = [llm.tokenizer.decode([token], special=True) for token in ids]
    except Exception as error:
        raise translate(error, "text") from error
    finally:
        generation.close()
    logprobs = [max(-9999.0, float(number)) for number in scores]
    return Json(
        {
            "model": body.model,
            "tokens": ids,
            "pieces": pieces,
            "logprobs": [None, *logprobs],
            "total": sum(logprobs),
            "usage": {"prompt_tokens": len(ids), "total_tokens": len(ids)},
            "timings": generation.spent(),
        }
    )


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
        choose_adapter(options, generation.lease.adapter)
        generation.texts = generation.lease.llm.aparallel(body.prompt, stream=True, **options)
        if body.stream:
            # An invalid request fails in the first step, before the answer has started.
            first = await unless_gone(request, anext(generation.texts, None))
            return Streamed(generation, _all(first, generation.texts), _Steps(generation), EVENTS)
        text = await unless_gone(request, generation.texts.result())
        answer = {"model": body.model, **text.to_dict()}
        answer["timings"] = {**answer["timings"], **generation.spent()}
        generation.close()
        return Json(answer)
    except BaseException as error:
        generation.close()
        if isinstance(error, Exception):
            raise translate(error, "prompt") from error
        raise


async def _all(first: Any, others: AsyncIterator[Any]) -> AsyncIterator[Any]:
    if first is not None:
        yield first
        async for step in others:
            yield step


class _Steps:
    """The steps as events, then the whole result."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation

    def more(self, step: Any) -> bytes:
        """A step."""
        event = {
            "index": step.index,
            "position": step.position,
            "text": step.text,
            "brackets": step.brackets,
            "threshold": step.threshold,
            "members": [asdict(member) for member in step.members],
        }
        return f"data: {dumps({'step': event})}\n\n".encode()

    async def end(self) -> bytes:
        """The whole result."""
        text = (await self._generation.texts.result()).to_dict()
        text["timings"] = {**text["timings"], **self._generation.spent()}
        return f"data: {dumps({'result': text})}\n\ndata: [DONE]\n\n".encode()

    def failed(self, error: ApiError) -> bytes:
        """The error is an event too, and the last one."""
        return f"data: {dumps(body_of(error, '/stretto/'))}\n\n".encode()
