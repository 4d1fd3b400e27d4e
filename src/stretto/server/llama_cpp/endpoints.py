"""`/completion`, `/infill`, `/tokenize`, `/detokenize`: llama-server's own endpoints, for its clients."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from fastapi import Request
from starlette.responses import Response

from stretto.llm import LLM
from stretto.server.generation.answer import long_json, respond, start_answer
from stretto.server.generation.chat import (
    continue_last_answer,
    encode_chat,
    encode_prompt,
    is_mixed,
    mixed_ids,
    replace_functions,
)
from stretto.server.generation.generation import Generation, lease_model
from stretto.server.generation.kept import remember
from stretto.server.generation.options import (
    check_at_most,
    check_prompts,
    named_grammar,
    plain_options,
    repeat_penalty,
)
from stretto.server.generation.requests import ChatRequest
from stretto.server.http.bodies import make_router
from stretto.server.http.errors import Json, field_error
from stretto.server.http.state import get_state
from stretto.server.llama_cpp.answers import LlamaAnswer
from stretto.server.llama_cpp.schemas import (
    DetokenizeTokens,
    InfillRequest,
    NativeCompletion,
    NativeSampling,
    TokenizeText,
    list_prompts,
)
from stretto.server.settings import RequestLimits
from stretto.text.infill import infill_prompt
from stretto.text.tokenizer import Tokenizer

# llama-server's fields as options of the engine.


def native_options(body: NativeSampling, limits: RequestLimits) -> dict[str, Any]:
    """The options, but for `logit_bias`, whose texts need a tokenizer."""
    options: dict[str, Any] = {"n": 1, **plain_options(body)}
    if body.top_k is not None:
        options["top_k"] = max(0, body.top_k)  # -1: all
    if (penalty := repeat_penalty(body)) is not None:
        options["repetition_penalty"] = penalty
    if body.seed is not None and body.seed >= 0:
        options["seed"] = body.seed
    if body.n_predict is not None and body.n_predict >= 0:
        options["max_tokens"] = body.n_predict
    if body.t_max_predict_ms is not None and body.t_max_predict_ms > 0:
        options["timeout"] = body.t_max_predict_ms / 1000
    if body.lora is not None:
        options["adapter"] = body.lora
    if body.n_probs:
        options["logprobs"] = body.n_probs
        options["sampled_logprobs"] = bool(body.post_sampling_probs)
    return options | named_grammar(body.grammar or None, body.json_schema, limits)


def logit_biases(body: NativeSampling, tokenizer: Tokenizer) -> dict[str, Any]:
    """The option `logit_bias`: of ids, and of every token of a text; to be called in a thread."""
    given = body.logit_bias
    pairs = list(given.items()) if isinstance(given, dict) else [_pair(one) for one in given or []]
    biases: dict[int, float] = {}
    for what, bias in pairs:
        is_text = isinstance(what, str) and not (what.isascii() and what.isdigit())
        ids = tokenizer.encode(str(what), special=True, bos=False) if is_text else [int(what)]
        biases.update(dict.fromkeys(ids, float("-inf") if bias is False else float(bias)))
    return {"logit_bias": biases} if biases else {}


def _pair(given: Any) -> tuple[int | str, Any]:
    is_pair = isinstance(given, list) and len(given) == 2
    what, bias = given if is_pair else (None, None)
    is_number = isinstance(bias, (int, float)) and bias is not True and abs(bias) <= 1e9
    if not is_number or isinstance(what, bool) or not isinstance(what, (int, str)):
        raise field_error(
            "logit_bias", "logit_bias must have pairs of a token or a text, and a number or false"
        )
    return what, bias


# Prompts of conversations, and tokens.

Value = TypeVar("Value")

router = make_router("llama-server")


@router.post("/apply-template")
async def apply_template(body: ChatRequest, request: Request) -> Response:
    """The prompt of a conversation as text, special tokens spelled out; nothing is generated."""
    return Json(
        {"prompt": await view_prompt(body, request, lambda llm, ids: llm.tokenizer.decode(ids, special=True))}
    )


@router.post("/v1/chat/completions/input_tokens")
@router.post("/chat/completions/input_tokens")
async def input_tokens(body: ChatRequest, request: Request) -> Response:
    """The number of tokens of a conversation; nothing is generated."""
    return Json({"input_tokens": await view_prompt(body, request, lambda llm, ids: len(ids))})


async def view_prompt(body: ChatRequest, request: Request, view: Callable[[LLM, list[int]], Value]) -> Value:
    """A view of the prompt of a conversation, made in a thread."""
    chat = replace_functions(body if request.url.path.startswith("/v1/") else continue_last_answer(body))
    async with lease_model(request, body.model, "messages") as generation:
        llm = generation.lease.llm
        ids = await encode_chat(chat, generation, request)
        return await asyncio.to_thread(view, llm, ids)


@router.post("/tokenize")
async def tokenize(body: TokenizeText, request: Request) -> Response:
    """The tokens of a text, or of a conversation."""
    state = get_state(request)
    given = [name for name in ("content", "prompt", "messages") if getattr(body, name) is not None]
    if len(given) != 1:
        raise field_error("content", "give one of content, prompt and messages", "missing_field")
    if body.messages is not None:
        return Json(await view_prompt(_conversation(body), request, partial(_for_vllm, body)))
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
    return await _tokenized(body.model, request, work, len(text))


@router.post("/detokenize")
async def detokenize(body: DetokenizeTokens, request: Request) -> Response:
    """The text of tokens, by the name that llama-server's clients know and by that of vLLM's."""
    return await _tokenized(
        body.model,
        request,
        lambda llm: dict.fromkeys(("content", "prompt"), llm.tokenizer.decode(body.tokens, special=True)),
        len(body.tokens),
    )


@router.post("/completion")
@router.post("/completions")
async def completion(body: NativeCompletion, request: Request) -> Response:
    """Continue a text, or several, with llama-server's fields."""
    limits = get_state(request).settings.limits
    prompts = list_prompts(body.prompt)
    check_prompts("prompt", prompts, limits)

    def ids(llm: LLM) -> list[list[int]]:
        return [mixed_ids(llm, one) if is_mixed(one) else encode_prompt(llm, one) for one in prompts]

    return await _answer(body, request, "prompt", len(prompts) > 1, ids)


@router.post("/infill")
async def infill(body: InfillRequest, request: Request) -> Response:
    """The text between a prefix and a suffix."""
    texts = [body.input_prefix, body.input_suffix, body.prompt or ""]
    whole = "".join([*texts, *(one.text for one in body.input_extra or [])])
    check_prompts("input_prefix", [whole], get_state(request).settings.limits)
    return await _answer(body, request, "input_prefix", False, lambda llm: [_infill_ids(llm.tokenizer, body)])


async def _answer(
    body: NativeSampling,
    request: Request,
    field: str,
    is_list: bool,
    prompts_for: Callable[[LLM], list[list[int]]],
) -> Response:
    """Generate from the prompts that `prompts_for` makes in a thread; `field` holds them."""
    state = get_state(request)
    options = native_options(body, state.settings.limits)

    async def start(generation: Generation) -> LlamaAnswer:
        llm = generation.lease.llm
        prompts = await asyncio.to_thread(prompts_for, llm)
        check_at_most(field, len(prompts), state.settings.max_running)
        texts = await asyncio.to_thread(
            lambda: [llm.tokenizer.decode(prompt, special=True) for prompt in prompts]
        )
        options.update(await asyncio.to_thread(logit_biases, body, llm.tokenizer))
        answer = LlamaAnswer(generation, body, texts, is_list, {**state.settings.defaults, **options})
        remember(generation, body.id_slot, prompts)
        await generation.start(
            prompts, {**options, "reasoning": False}, follow=bool(body.stream and body.return_progress)
        )
        return answer

    shaped = "grammar" if body.grammar else "json_schema"
    answer = await start_answer(request, body.model, start, field, shaped)
    return await respond(request, answer, body.stream)


async def _tokenized(name: str, request: Request, work: Callable[[LLM], dict[str, Any]], n: int) -> Response:
    async with lease_model(request, name, "content") as generation:
        found = await asyncio.to_thread(work, generation.lease.llm)
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
