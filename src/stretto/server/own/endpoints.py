"""`/stretto/…`: Stretto's own endpoints, and `/health` and `/metrics`."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import Query, Request
from pydantic import Field
from starlette.responses import PlainTextResponse, Response

from stretto import Capture, Result, __version__, hardware
from stretto.llm import LLM
from stretto.parallel.options import ParallelParams
from stretto.parallel.render import ParallelText
from stretto.parallel.types import Attention, Member, ParallelStep
from stretto.probing.lens import read_streams
from stretto.server.generation.answer import Answer, Streamed, clamp_logprob, long_json, start_answer
from stretto.server.generation.chat import encode_prompt
from stretto.server.generation.fields import Body, ModelName, Name, Number, Stops, Text, Tokens, within
from stretto.server.generation.generation import Generation, lease_model, unless_gone
from stretto.server.generation.kept import list_pins, release
from stretto.server.generation.options import check_prompts
from stretto.server.http import metrics
from stretto.server.http.bodies import make_router
from stretto.server.http.errors import Json, field_error
from stretto.server.http.registry import choose_adapter
from stretto.server.http.served_model import ServedModel
from stretto.server.http.state import get_caller, get_state, require_admin
from stretto.server.http.streaming import DONE, event
from stretto.server.http.usage import cpu_seconds
from stretto.text.tokenizer import Tokenizer

# Parallel runs as answers: steps as events, and what their members attend to, in brief.

ATTENTION_BYTES = 256 << 20  # that the attention of a run may take, at most
ATTENTION_COLUMNS = 64  # of a step that are told
WATCHED_MEMBERS = 4096  # of a stream that may still be pruned


def check_attention(llm: LLM, prompt: str | list[int], options: dict[str, Any]) -> None:
    """Refuse a run whose attention may take too much memory, before anything is computed.

    A pass needs a number for each layer, head, member and cell; a step keeps one for each member and cell.
    """
    spec, length = llm.backend.spec, llm.context_length
    width = options.get("max_width", ParallelParams.max_width)
    steps = min(options.get("max_tokens", length), length)
    cells = min(len(prompt) + width * steps, len(llm.cells))
    need = 4 * width * cells * (spec.n_layer * spec.n_head + steps)
    if need > ATTENTION_BYTES:
        message = (
            f"attention of {steps} steps with up to {width} members takes up to {need >> 20} MiB, and "
            f"{ATTENTION_BYTES >> 20} are allowed: set max_tokens or max_width lower, or shorten the prompt"
        )
        raise field_error("attention", message, "over_limit")


def shorten_attention(attention: Attention, tokenizer: Tokenizer) -> dict[str, Any]:
    """The mean over layers and heads: the columns with the most weight, in order of position."""
    weights = attention.weights.mean((0, 1))  # float32[members, cells]
    most = np.sort(np.argsort(weights.max(0))[-ATTENTION_COLUMNS:])
    tokens = attention.tokens[most].tolist()
    return {
        "cells": attention.cells[most].tolist(),
        "positions": attention.positions[most].tolist(),
        "tokens": tokens,
        "pieces": [tokenizer.spelled(token) if token >= 0 else "" for token in tokens],
        "weights": [[round(float(weight), 5) for weight in row] for row in weights[:, most]],
    }


async def chain_steps(first: Any, others: AsyncIterator[Any]) -> AsyncIterator[Any]:
    """The steps of a run of which the first has been taken."""
    if first is not None:
        yield first
        async for step in others:
            yield step


class StepAnswer(Answer):
    """A parallel run: its steps as events, then the whole result.

    A step tells which members were pruned since the one before; the attention beside it is that of the step
    before, which has been computed by then.
    """

    def __init__(self, generation: Generation, model: str) -> None:
        super().__init__(generation)
        self._model = model
        self._before: ParallelStep | None = None
        self._kept: deque[tuple[int, int, Member]] = deque(maxlen=WATCHED_MEMBERS)

    def whole(self, text: ParallelText) -> dict[str, Any]:
        """The whole run, with the attention of its steps where it was measured."""
        answer = {"model": self._model, **self._timed(text)}
        for step, told in zip(text.steps, answer["steps"], strict=True):
            if step.attention is not None:
                told["attention"] = shorten_attention(step.attention, self.tokenizer)
        return answer

    def _timed(self, text: ParallelText) -> dict[str, Any]:
        found = text.to_dict()
        return {**found, "timings": {**found["timings"], **self.generation.spent()}}

    def write(self, step: ParallelStep) -> bytes:
        """A step."""
        pruned = [[at, number] for at, number, member in self._kept if not member.kept]
        self._kept = deque((entry for entry in self._kept if entry[2].kept), WATCHED_MEMBERS)
        self._kept.extend((step.index, number, member) for number, member in enumerate(step.members))
        told: dict[str, Any] = {
            "step": {
                "index": step.index,
                "position": step.position,
                "text": step.text,
                "chosen": step.chosen,
                "brackets": step.brackets,
                "threshold": step.threshold,
                "members": [asdict(member) for member in step.members],
                "edges": step.edges,
                "pruned": pruned,
            }
        }
        before, self._before = self._before, step
        if before is not None and before.attention is not None:
            told["attention"] = {"index": before.index, **shorten_attention(before.attention, self.tokenizer)}
        return event(told).encode()

    async def end(self) -> bytes:
        """The whole result."""
        return event({"result": self._timed(await self.generation.texts.result())}).encode() + DONE


router = make_router("Stretto")

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


class LayersRequest(Body):
    """`POST /stretto/layers`: what each layer would have said behind a token (stretto docs inside)."""

    model: Name
    prompt: Text | Tokens
    place: Annotated[int, Field(ge=-(1 << 31), lt=1 << 31)] = Field(
        -1, description="Which token of the prompt; below 0 from its end."
    )
    top: Annotated[int, Field(ge=1, le=20)] = Field(5, description="How many tokens of each layer.")


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
    stop: Stops | None = None
    timeout: Annotated[Number, within("timeout")] | None = None
    attention: bool | None = Field(None, description="Tell what the members of each set attend to.")


@router.get("/health")
async def health(request: Request) -> Response:
    """Health check: the server takes requests."""
    state = get_state(request)
    return Json(
        {"status": "ok", "version": __version__, "uptime": round(time.monotonic() - state.started, 1)}
    )


@router.get("/metrics")
async def prometheus(request: Request) -> Response:
    """Metrics for Prometheus; those of llama-server under its names too."""
    state = get_state(request)
    started = metrics.start_header(time.monotonic() - state.started)
    return PlainTextResponse(
        metrics.render(state, get_caller(request)), media_type=metrics.PROMETHEUS, headers=started
    )


@router.get("/stretto/hardware")
async def machine() -> Response:
    """This machine's hardware; speeds if they have been measured (`stretto devices`)."""
    return Json(asdict(await asyncio.to_thread(hardware.probe, False)))


@router.get("/stretto/stats")
async def stats(request: Request) -> Response:
    """The models, their memory, and the counters of their engines and caches."""
    state = get_state(request)
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
    served = get_state(request).registry.find(model)
    return Json({"model": model, "pins": list_pins(served, get_caller(request))})


@router.delete("/stretto/pins/{name}")
async def unpin(name: str, request: Request, model: ModelName, caller: CallerName = None) -> Response:
    """Release a pinned prompt; an admin may release another caller's."""
    served, own = get_state(request).registry.find(model), get_caller(request).name
    if caller not in (None, own):
        require_admin(request)
    await asyncio.to_thread(release, served, own if caller is None else caller, name)
    return Json({"model": model, "released": name})


@router.post("/stretto/tokenize")
async def tokenize(body: TokenizeRequest, request: Request) -> Response:
    """Text to tokens, or tokens to text."""
    if (body.text is None) == (body.tokens is None):
        raise field_error("text", "give either text or tokens")
    field = "text" if body.text is not None else "tokens"
    check_prompts(field, [body.text or body.tokens or ""], get_state(request).settings.limits)
    async with lease_model(request, body.model, "text") as generation:
        answer = await asyncio.to_thread(_tokenized, generation.lease.llm.tokenizer, body)
    return await long_json(
        {"model": body.model, **answer, "timings": generation.spent()}, 2 * answer["count"]
    )


def _tokenized(tokenizer: Tokenizer, body: TokenizeRequest) -> dict[str, Any]:
    if body.text is None:
        ids = body.tokens or []
    else:
        ids = tokenizer.encode_inside(body.text) if body.inside else tokenizer.encode(body.text, body.special)
    text = tokenizer.decode(ids, special=body.special)
    return {"tokens": ids, "pieces": list_pieces(tokenizer, ids), "text": text, "count": len(ids)}


def list_pieces(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    """The text of each token; to be called in a thread."""
    known = {token: tokenizer.spelled(token) for token in set(ids)}
    return [known[token] for token in ids]


@router.post("/stretto/score")
async def score(body: ScoreRequest, request: Request) -> Response:
    """The log-probability of each token of a text after its first, given those before it."""
    check_prompts("text", [body.text], get_state(request).settings.limits)
    async with lease_model(request, body.model, "text") as generation:
        llm = generation.lease.llm
        ids = await asyncio.to_thread(encode_prompt, llm, body.text)
        scores = await unless_gone(request, llm.ascore(ids, adapter=generation.lease.adapter))
        pieces = await asyncio.to_thread(list_pieces, llm.tokenizer, ids)
    logprobs = [clamp_logprob(float(number)) for number in scores]
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


@router.post("/stretto/layers")
async def layers(body: LayersRequest, request: Request) -> Response:
    """What each layer would have said behind a token of a prompt: the logit lens of its residual stream."""
    check_prompts("prompt", [body.prompt], get_state(request).settings.limits)
    options: dict[str, Any] = {"max_tokens": 1, "temperature": 0, "ignore_eos": True}
    async with lease_model(request, body.model, "text") as generation:
        llm = generation.lease.llm
        choose_adapter(options, generation.lease)
        options["cache_salt"] = generation.caller.salt or None
        options["timeout"] = generation.left
        ids = await asyncio.to_thread(encode_prompt, llm, body.prompt)
        place = body.place + len(ids) if body.place < 0 else body.place
        if not 0 <= place < len(ids):
            raise field_error("place", f"the prompt has {len(ids)} tokens, and none is number {body.place}")
        capture = Capture("residual", tokens=[-1])
        result = await unless_gone(request, llm.agenerate(ids[: place + 1], capture=capture, **options))
        found = await asyncio.to_thread(_said, llm, result, min(body.top, llm.spec.n_vocab))
        piece = await asyncio.to_thread(list_pieces, llm.tokenizer, ids[place : place + 1])
    answer = {"model": body.model, "place": place, "token": ids[place], "piece": piece[0], "layers": found}
    return Json(answer | {"timings": generation.spent()})


def _said(llm: LLM, result: Result, top: int) -> list[list[dict[str, Any]]]:
    """Of each layer its most probable tokens; to be called in a thread."""
    if result.captured is None or not result.captured.tokens:  # its time was over before
        raise field_error("prompt", "there was no time to compute it", "timeout")
    tokens, logprobs = read_streams(llm, result.captured.stack("residual")[:, 0], top)
    return [
        [
            {"id": token, "piece": piece, "logprob": clamp_logprob(logprob)}
            for token, piece, logprob in zip(ids, list_pieces(llm.tokenizer, ids), logs, strict=True)
        ]
        for ids, logs in zip(tokens.tolist(), logprobs.tolist(), strict=True)
    ]


@router.post("/stretto/parallel")
async def parallel(body: ParallelRequest, request: Request) -> Response:
    """Continue a text and keep every token that is probable enough; with `stream`, step by step."""
    check_prompts("prompt", [body.prompt], get_state(request).settings.limits)
    options = body.model_dump(exclude={"model", "prompt", "stream"}, exclude_none=True)
    first: ParallelStep | None = None
    text: Any = None

    async def start(generation: Generation) -> StepAnswer:
        nonlocal first, text
        left = generation.left
        options["timeout"] = min(options.get("timeout", left), left)
        choose_adapter(options, generation.lease)
        options["cache_salt"] = generation.caller.salt or None
        if options.pop("attention", False):
            check_attention(generation.lease.llm, body.prompt, options)
            options["attention"] = "mean"
        generation.texts = generation.lease.llm.aparallel(body.prompt, stream=True, **options)
        if body.stream:  # an invalid request fails in the first step, before the answer has started
            first = await anext(generation.texts, None)
        else:
            text = await generation.texts.result()
            await generation.finish()
        return StepAnswer(generation, body.model)

    answer = await start_answer(request, body.model, start, "prompt")
    if body.stream:
        return Streamed(answer, chain_steps(first, answer.generation.texts))
    answer.generation.close()
    return Json(answer.whole(text))
