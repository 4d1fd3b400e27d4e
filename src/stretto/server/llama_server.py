"""`/completion`, `/infill`, `/tokenize`, `/detokenize`: llama-server's own endpoints, for its clients."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from stretto.llm import LLM
from stretto.server.answers import long_json
from stretto.server.defaults import with_defaults
from stretto.server.errors import ApiError, Json, translate
from stretto.server.generation import Generation, begin, started, unless_gone
from stretto.server.llama_answers import NativeEvents, NativeShape
from stretto.server.llama_chat import rendered
from stretto.server.llama_options import logit_biases, native_options
from stretto.server.llama_schemas import (
    DetokenizeTokens,
    InfillRequest,
    NativeCompletion,
    NativeSampling,
    TokenizeText,
    prompts_of,
)
from stretto.server.open_response import EVENTS
from stretto.server.options import check_at_most, check_prompts
from stretto.server.prompt_ids import ids_of, is_mixed, mixed_ids
from stretto.server.schemas import ChatRequest
from stretto.server.slot_files import remember
from stretto.server.state import State, state_of
from stretto.server.streamed import Streamed
from stretto.server.tasks import rerank
from stretto.text.infill import infill_prompt
from stretto.text.tokenizer import Tokenizer

router = APIRouter(tags=["llama-server"])

for _path in ("/rerank", "/v1/reranking", "/v2/rerank"):
    router.post(_path)(rerank)


@router.post("/tokenize")
async def tokenize(body: TokenizeText, request: Request) -> Response:
    """The tokens of a text, or of a conversation."""
    state = state_of(request)
    given = [name for name in ("content", "prompt", "messages") if getattr(body, name) is not None]
    if len(given) != 1:
        raise ApiError(400, "give one of content, prompt and messages", param="content", code="missing_field")
    if body.messages is not None:
        return Json(await rendered(_conversation(body), request, partial(_for_vllm, body)))
    text = body.content or body.prompt or ""

    def work(llm: LLM) -> dict[str, Any]:
        tokenizer, is_llamas = llm.tokenizer, body.prompt is None
        with_bos = body.add_special if is_llamas else body.add_special_tokens is not False
        bos = (tokenizer.add_bos or None) if with_bos else False
        ids = tokenizer.encode(text, special=body.parse_special, bos=bos)
        if not is_llamas:
            return _for_vllm(body, llm, ids)
        if not body.with_pieces:
            return {"tokens": ids}
        return {"tokens": [{"id": token, "piece": _piece(tokenizer, token)} for token in ids]}

    check_prompts(given[0], [text], state.settings.limits)
    return await _tokenized(state, body.model, request, work, len(text))


@router.post("/detokenize")
async def detokenize(body: DetokenizeTokens, request: Request) -> Response:
    """The text of tokens, by the name that llama-server's clients know and by that of vLLM's."""
    state = state_of(request)
    return await _tokenized(
        state,
        body.model,
        request,
        lambda llm: dict.fromkeys(("content", "prompt"), llm.tokenizer.decode(body.tokens, special=True)),
        len(body.tokens),
    )


@router.post("/completion")
@router.post("/completions")
async def completion(body: NativeCompletion, request: Request) -> Response:
    """Continue a text, or several, with llama-server's fields."""
    limits = state_of(request).settings.limits
    prompts = prompts_of(body.prompt)
    check_prompts("prompt", prompts, limits)

    def ids(llm: LLM) -> list[list[int]]:
        return [mixed_ids(llm, one) if is_mixed(one) else ids_of(llm, one) for one in prompts]

    return await _answer(body, request, "prompt", len(prompts) > 1, ids)


@router.post("/infill")
async def infill(body: InfillRequest, request: Request) -> Response:
    """The text between a prefix and a suffix."""
    texts = [body.input_prefix, body.input_suffix, body.prompt or ""]
    whole = "".join([*texts, *(one.text for one in body.input_extra or [])])
    check_prompts("input_prefix", [whole], state_of(request).settings.limits)
    return await _answer(body, request, "input_prefix", False, lambda llm: [_infill_ids(llm.tokenizer, body)])


async def _answer(
    body: NativeSampling,
    request: Request,
    field: str,
    is_list: bool,
    prompts_for: Callable[[LLM], list[list[int]]],
) -> Response:
    """Generate from the prompts that `prompts_for` makes in a thread; `field` holds them."""
    state = state_of(request)
    options = native_options(body, state.settings.limits)

    async def start(generation: Generation) -> NativeShape:
        llm = generation.lease.llm
        prompts = await asyncio.to_thread(prompts_for, llm)
        check_at_most(field, len(prompts), state.settings.max_running)
        texts = await asyncio.to_thread(
            lambda: [llm.tokenizer.decode(prompt, special=True) for prompt in prompts]
        )
        options.update(await asyncio.to_thread(logit_biases, body, llm.tokenizer))
        shape = NativeShape(generation, body, texts, with_defaults(options, state.settings.defaults))
        remember(generation, body.id_slot, prompts)
        await generation.start(
            prompts, {**options, "reasoning": False}, follow=bool(body.stream and body.return_progress)
        )
        return shape

    request.scope["stretto"].update(model=body.model)
    shaped = "grammar" if body.grammar else "json_schema"
    generation, shape = await started(request, body.model, start, field, shaped)
    try:
        if body.stream:
            return Streamed(generation, generation.texts, NativeEvents(shape, request.url.path), EVENTS)
        results = await unless_gone(request, generation.results())
        answers = [shape.whole(index, result) for index, result in enumerate(results)]
        generation.close()
        n_values = sum(len(result.tokens) for result in results) * (1 + (body.n_probs or 0))
        return await long_json(answers if is_list else answers[0], n_values)
    except BaseException:
        generation.close()
        raise


async def _tokenized(state: State, name: str, request: Request, work: Any, n: int) -> Response:
    generation = await begin(state, name, request)
    try:
        found = await asyncio.to_thread(work, generation.lease.llm)
    except Exception as error:
        raise translate(error, "content") from error
    finally:
        generation.close()
    return await long_json(found, n)


def _conversation(body: TokenizeText) -> ChatRequest:
    fields = {name: getattr(body, name) for name in ("model", "messages", "tools", "chat_template_kwargs")}
    begins = body.add_generation_prompt
    return ChatRequest.model_validate(
        {
            **fields,
            "add_generation_prompt": not body.continue_final_message if begins is None else begins,
            "continue_final_message": body.continue_final_message,
        }
    )


def _for_vllm(body: TokenizeText, llm: LLM, ids: list[int]) -> dict[str, Any]:
    """Tokens in vLLM's form."""
    texts = [llm.tokenizer.spelled(token) for token in ids] if body.return_token_strs else None
    return {"count": len(ids), "max_model_len": llm.context_length, "tokens": ids, "token_strs": texts}


def _infill_ids(tokenizer: Tokenizer, body: InfillRequest) -> list[int]:
    files = [(one.filename or "tmp", one.text) for one in body.input_extra or []]
    ids = infill_prompt(tokenizer, body.input_prefix, body.input_suffix, files=files)
    return ids + (tokenizer.encode_inside(body.prompt) if body.prompt else [])


def _piece(tokenizer: Tokenizer, token: int) -> str | list[int]:
    """The text of a token, or its bytes where they are no text."""
    data = tokenizer.token_bytes(token)
    try:
        return data.decode() if data else tokenizer.spelled(token)
    except UnicodeDecodeError:
        return list(data)
