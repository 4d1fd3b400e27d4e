"""`/v1/…`: OpenAI's endpoints."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable
from datetime import datetime, timezone
from typing import Any

import numpy as np
from fastapi import APIRouter, Request
from starlette.responses import Response

from stretto.llm import LLM
from stretto.server.answers import PIECE_VALUES, long_json
from stretto.server.conversation import options_of, planned
from stretto.server.echo import check_echo, echoed, nothing_new
from stretto.server.embedding import Vectors, embedded, ids_of
from stretto.server.errors import ApiError, Json, translate
from stretto.server.generation import Generation, begin, started, unless_gone
from stretto.server.legacy import FunctionShape, with_tools
from stretto.server.open_response import EVENTS
from stretto.server.options import check_at_most, check_prompts, completion_options
from stretto.server.pins import check_pin, pin
from stretto.server.prompts import check_suffix, is_mixed, made_prompts
from stretto.server.schemas import ChatRequest, CompletionRequest, EmbeddingRequest
from stretto.server.shapes import ChatShape, Chunks, Shape
from stretto.server.slots import Slot
from stretto.server.state import state_of
from stretto.server.streamed import Streamed
from stretto.server.structured import grammar_of

router = APIRouter(tags=["OpenAI"])


@router.get("/v1/models")
async def models(request: Request) -> Response:
    """The models that are served."""
    state = state_of(request)
    listed = [_model(name, slot) for name, slot in state.registry.names()]
    ends = {"first_id": listed[0]["id"], "last_id": listed[-1]["id"]} if listed else {}
    return Json({"object": "list", "data": listed, "has_more": False, **ends})


@router.get("/v1/models/{name:path}")
async def model(name: str, request: Request) -> Response:
    """One model that is served."""
    return Json(_model(name, state_of(request).registry.find(name)))


@router.post("/v1/completions")
async def completions(body: CompletionRequest, request: Request) -> Response:
    """Continue a text, or several."""
    state = state_of(request)
    check_echo(body)
    options = completion_options(body, state.settings.limits)
    options.update(grammar_of(body, state.settings.limits))
    prompts = prompts_of(body.prompt)
    check_prompts("prompt", prompts, state.settings.limits)
    check_suffix(body, prompts, state.settings.limits)
    several = "best_of" if "best_of" in options else "n"
    check_at_most(several, options[several] * len(prompts), state.settings.max_running)

    async def start(generation: Generation) -> Shape:
        llm = generation.lease.llm
        shape = Shape(generation, body.model, body.logprobs)
        if body.suffix or any(map(is_mixed, prompts)):
            prompts[:] = await asyncio.to_thread(made_prompts, llm, prompts, body.suffix)
        if body.echo:
            texts = await asyncio.to_thread(lambda: [_text(llm, prompt) for prompt in prompts])
            shape.before = [text for text in texts for _ in range(options["n"])]
            if body.logprobs is not None:
                scored = await echoed(generation, prompts, dict(options))
                shape.scored = [tokens for tokens in scored for _ in range(options["n"])]
        if body.max_tokens == 0:
            return shape
        ready = await _with_ids(body, shape, await _continued(body, generation, prompts), options["n"])
        await _start(body, generation, ready, options)
        return shape

    if body.max_tokens == 0:
        return await _echo(request, body, start, prompts, options["n"])
    return await _answer(request, body, start, len(prompts), "prompt")


@router.post("/v1/chat/completions")
async def chat(body: ChatRequest, request: Request) -> Response:
    """Answer a conversation."""
    state = state_of(request)
    legacy = body.functions is not None
    body = with_tools(body)
    options = options_of(body, state.settings.limits)
    check_at_most("n", options["n"], state.settings.max_running)

    async def start(generation: Generation) -> Shape:
        plan, prompt = await planned(body, generation, state.settings)
        tops = (body.top_logprobs or 0) if body.logprobs else None
        kind = FunctionShape if legacy else ChatShape
        shape = kind(generation, body.model, tops, plan, body.continue_token_ids or [])
        ready = await _with_ids(body, shape, await _continued(body, generation, [prompt]), options["n"])
        await _start(body, generation, ready, plan.options({"reasoning": True, **options}))
        return shape

    return await _answer(request, body, start, 1, "messages")


async def _continued(
    body: CompletionRequest | ChatRequest, generation: Generation, prompts: list[Any]
) -> list[Any]:
    """The prompts, each with the ids behind it that the answer begins with."""
    begun = body.continue_token_ids
    if begun is None:
        return prompts
    if begun[-1] in generation.lease.llm.tokenizer.end_ids and not body.ignore_eos:
        raise ApiError(
            400,
            f"continue_token_ids ends with {begun[-1]}, which ends the text; there is nothing to go on with",
            param="continue_token_ids",
            code="already_ended",
        )
    ids = [await asyncio.to_thread(ids_of, generation.lease.llm, prompt) for prompt in prompts]
    return [[*prompt, *begun] for prompt in ids]


async def _with_ids(
    body: CompletionRequest | ChatRequest, shape: Shape, prompts: list[Any], n: int
) -> list[Any]:
    """The prompts, whose ids the shape has from now on if they are asked for."""
    if not body.return_token_ids:
        return prompts
    ready = [await asyncio.to_thread(ids_of, shape.generation.lease.llm, prompt) for prompt in prompts]
    ids = [prompt if all(type(token) is int for token in prompt) else None for prompt in ready]
    shape.prompts = [each for each in ids for _ in range(n)]
    shape.ends |= frozenset(body.stop_tokens or ())
    return ready


async def _start(
    body: CompletionRequest | ChatRequest, generation: Generation, prompts: list[Any], options: dict[str, Any]
) -> None:
    """Queue the texts, and the pin for when they are done."""
    if (name := body.cache_pin) is not None:
        (prompt,) = check_one(prompts, "cache_pin")
        ids = await asyncio.to_thread(ids_of, generation.lease.llm, prompt)
        prompts = [ids]
        check_pin(generation, name, len(ids))
        generation.last = lambda: pin(generation, name, ids)
    await generation.start(prompts, options)


async def _echo(
    request: Request,
    body: CompletionRequest,
    start: Callable[[Generation], Awaitable[Shape]],
    prompts: list[Any],
    n: int,
) -> Response:
    """The answer to a request for no new tokens: its prompts, with log-probabilities if they are wanted."""
    _note(request, body)
    generation, shape = await started(request, body.model, start, "prompt")
    try:
        llm = generation.lease.llm
        ids = await asyncio.to_thread(lambda: [ids_of(llm, prompt) for prompt in prompts])
        results = [nothing_new(len(prompt)) for prompt in ids for _ in range(n)]
        whole = await asyncio.to_thread(shape.whole, results, len(prompts))
        return await long_json(whole, sum(map(len, ids)) * n * (1 + (shape.tops or 0)))
    finally:
        generation.close()


def _note(request: Request, body: CompletionRequest | ChatRequest) -> None:
    """Put the model and the user into the request's log line."""
    request.scope["stretto"].update(model=body.model, **({"user": body.user[:100]} if body.user else {}))


async def _answer(
    request: Request,
    body: CompletionRequest | ChatRequest,
    start: Callable[[Generation], Awaitable[Shape]],
    n_prompts: int,
    prompt: str,
) -> Response:
    """Start a generation and answer with it; `prompt` is the field that holds the prompt."""
    _note(request, body)
    shaped = "grammar" if body.grammar else "response_format"
    generation, shape = await started(request, body.model, start, prompt, shaped)
    try:
        if body.stream:
            usage = body.stream_options is not None and body.stream_options.include_usage
            return Streamed(generation, generation.texts, Chunks(shape, usage, n_prompts), EVENTS)
        results = await unless_gone(request, generation.results())
        n_values = sum(len(result.tokens) for result in results) * (shape.tops or 0)
        n_values += sum(map(len, shape.scored)) * (1 + (shape.tops or 0))
        if n_values <= PIECE_VALUES:
            whole = shape.whole(results, n_prompts)
        else:
            whole = await asyncio.to_thread(shape.whole, results, n_prompts)
        generation.close()
        return await long_json(whole, n_values)
    except BaseException:
        generation.close()
        raise


@router.post("/v1/embeddings")
async def embeddings(body: EmbeddingRequest, request: Request) -> Response:
    """A vector for each text: its final hidden states, pooled."""
    state = state_of(request)
    texts = prompts_of(body.input)
    check_prompts("input", texts, state.settings.limits)
    generation = await begin(state, body.model, request, "embed")
    try:
        how = Vectors(body.pooling, body.normalize, body.dimensions)
        vectors, n_tokens = await unless_gone(request, embedded(generation, texts, how))
    except Exception as error:
        raise translate(error, "input") from error
    finally:
        generation.close()
    data = [
        {"object": "embedding", "index": index, "embedding": _encoded(vector, body.encoding_format)}
        for index, vector in enumerate(vectors)
    ]
    answer = {
        "object": "list",
        "data": data,
        "model": body.model,
        "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens},
        "timings": generation.spent(),
    }
    return await long_json(answer, sum(len(vector) for vector in vectors))


def prompts_of(given: str | list[Any]) -> list[Any]:
    """A prompt or a list of prompts as a list; a list with ids in it is one prompt."""
    if isinstance(given, str) or isinstance(given[0], int) or is_mixed(given):
        return [given]
    return list(given)


def check_one(prompts: list[Any], name: str) -> list[Any]:
    """Raise unless there is exactly one prompt."""
    if len(prompts) != 1:
        raise ApiError(400, f"{name} is for a single prompt, not for {len(prompts)}", param=name)
    return prompts


def _text(llm: LLM, prompt: str | list[int]) -> str:
    return prompt if isinstance(prompt, str) else llm.tokenizer.decode(prompt)


def _encoded(vector: Any, how: str | None) -> list[float] | str:
    if how == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return [float(number) for number in np.asarray(vector)]


def _model(name: str, slot: Slot) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": int(slot.facts["modified"]),
        "owned_by": "stretto",
        **_for_anthropic(name, slot),
        "context_length": slot.facts["context_length"],
        **({"parent": slot.name} if name != slot.name else {}),
    }


def _for_anthropic(name: str, slot: Slot) -> dict[str, Any]:
    """The fields of a model that Anthropic's clients read; they ask at the same path."""
    created = datetime.fromtimestamp(int(slot.facts["modified"]), timezone.utc)
    return {
        "type": "model",
        "display_name": name,
        "created_at": created.isoformat(),
        "lifecycle": "active",
        "max_input_tokens": slot.facts["context_length"],
    }
