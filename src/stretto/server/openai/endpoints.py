"""`/v1/…`: OpenAI's endpoints."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime, timezone
from typing import Annotated, Any

from fastapi import Query, Request
from starlette.responses import Response

from stretto import Result, Token
from stretto.engine.types import Timings, Usage
from stretto.llm import LLM
from stretto.server.generation.answer import Made, long_json, respond, start_answer
from stretto.server.generation.chat import (
    encode_prompt,
    encode_prompts,
    is_mixed,
    last_answer,
    mixed_ids,
    prepare_chat,
    read_chat_options,
    replace_functions,
    split_prompts,
    unwrap_text,
)
from stretto.server.generation.generation import Generation, lease_model, unless_gone
from stretto.server.generation.kept import check_pin, pin, remember
from stretto.server.generation.options import (
    check_allowed,
    check_at_most,
    check_prompts,
    completion_options,
    read_grammar,
    shaping_fields,
)
from stretto.server.generation.requests import (
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    Sampling,
)
from stretto.server.generation.streams import keep_stream
from stretto.server.generation.vectors import Vectors, embed_texts, write_vector
from stretto.server.http.bodies import make_router
from stretto.server.http.errors import ApiError, Json, field_error, unsupported
from stretto.server.http.registry import choose_adapter
from stretto.server.http.served_model import ServedModel, find_context_length, list_capabilities
from stretto.server.http.state import get_state
from stretto.server.openai.answers import ChatAnswer, CompletionAnswer, FunctionAnswer
from stretto.server.settings import RequestLimits, Settings
from stretto.tasks import TaskModel
from stretto.text.infill import infill_prompt

# The log-probabilities of a prompt, for `/v1/completions` with `echo` and `logprobs`.
#
# lm-eval's `local-completions` scores texts with them: the prompt holds context and continuation,
# `max_tokens` is 1 or 0, and what counts are the log-probabilities of the prompt's own tokens.


def check_echo(body: CompletionRequest) -> None:
    """Raise for fields that do not go with `echo`, or need it."""
    if body.max_tokens == 0 and body.echo:
        for name in ("stream", "best_of", "cache_pin", "return_token_ids"):
            if getattr(body, name):
                raise field_error(name, f"{name} needs max_tokens of at least 1", "unsupported")
    scores = body.logprobs is not None or body.max_tokens == 0
    if body.echo and scores and body.continue_token_ids is not None:
        raise field_error(
            "continue_token_ids",
            "continue_token_ids and echo do not go together with logprobs or without new tokens",
            "unsupported",
        )


async def score_prompts(
    generation: Generation, prompts: list[Any], top: int, options: dict[str, Any]
) -> list[list[Token]]:
    """The tokens of each prompt with their log-probabilities, by the adapter that its text will have."""
    salt = generation.caller.salt or None
    choose_adapter(options, generation.lease)
    scoring = generation.lease.llm.aprompt_logprobs(
        prompts, top, cache_salt=salt, adapter=options.get("adapter")
    )
    try:
        return await asyncio.wait_for(scoring, generation.left)
    except asyncio.TimeoutError:
        raise ApiError(
            503, "the prompt was not scored before the time limit of the request", code="timeout",
            retry_after=10,
        ) from None  # fmt: skip


def make_empty_result(n_prompt: int) -> Result:
    """The result of a request for no tokens: its prompt is all there is."""
    return Result(
        text="",
        tokens=[],
        finish_reason="length",
        stop_reason=None,
        usage=Usage(n_prompt, 0),
        timings=Timings(0.0, 0.0, 0),
        seed=0,
        logprobs=[],
    )


# Prompts of `/v1/completions` that are more than a text or a list of ids: mixtures, and gaps to fill.


def check_suffix(body: CompletionRequest, prompts: list[Any], limits: RequestLimits) -> None:
    """Raise for fields that do not go with `suffix`."""
    if not body.suffix:
        return
    check_prompts("suffix", [body.suffix], limits)
    if not all(isinstance(prompt, str) for prompt in prompts):
        raise unsupported("suffix needs prompts that are texts, not ids", "suffix")
    if body.add_special_tokens is False:
        raise unsupported("add_special_tokens: false and suffix do not go together", "add_special_tokens")
    if body.echo:
        raise unsupported("echo and suffix do not go together", "echo")


def needs_ids(body: CompletionRequest, prompts: list[Any]) -> bool:
    """Whether prompts are more than what the engine takes."""
    is_changed = body.suffix or body.truncate_prompt_tokens is not None or body.add_special_tokens is False
    return bool(is_changed) or any(map(is_mixed, prompts))


def make_prompts(llm: LLM, prompts: list[Any], body: CompletionRequest) -> list[Any]:
    """The prompts as ids, where they are mixtures, have a gap or are cut; to be called in a thread."""
    if body.suffix:
        made = [infill_prompt(llm.tokenizer, prompt, body.suffix) for prompt in prompts]
    else:
        bos = False if body.add_special_tokens is False else None
        made = [_ids_or_text(llm, prompt, bos) for prompt in prompts]
    return truncate_prompts(llm, made, body)


def _ids_or_text(llm: LLM, prompt: Any, bos: bool | None) -> Any:
    if is_mixed(prompt):
        return mixed_ids(llm, prompt, bos)
    if isinstance(prompt, str) and bos is False:
        return llm.tokenizer.encode(prompt, special=True, bos=False)
    return prompt


def truncate_prompts(llm: LLM, prompts: list[Any], body: Sampling) -> list[Any]:
    """The prompts, of which `truncate_prompt_tokens` keeps a part; to be called in a thread."""
    most = body.truncate_prompt_tokens
    if most is None:
        return prompts
    if most == 0:
        raise field_error("truncate_prompt_tokens", "truncate_prompt_tokens is 0; a prompt needs a token")
    if most < 0:
        most = max(1, llm.context_length - max(1, body.max_tokens or 1))
    several = [plain_ids(llm, prompt, "truncate_prompt_tokens") for prompt in prompts]
    return [ids[:most] if body.truncation_side == "right" else ids[-most:] for ids in several]


def plain_ids(llm: LLM, prompt: Any, field: str) -> list[int]:
    """The ids of a prompt for a field that does not go with images."""
    ids = encode_prompt(llm, prompt)
    if not all(type(token) is int for token in ids):
        raise unsupported(f"{field} and images do not go together", field)
    return ids


router = make_router("OpenAI")


@router.get("/v1/models")
async def models(request: Request) -> Response:
    """The models that are served."""
    state = get_state(request)
    names = state.registry.names()
    listed = [_model(name, served, state.settings) for name, served in names]
    ends = {"first_id": listed[0]["id"], "last_id": listed[-1]["id"]} if listed else {}
    shown = [_for_llama(name, served) for name, served in names]
    return Json({"object": "list", "data": listed, "models": shown, "has_more": False, **ends})


@router.get("/v1/models/{name:path}")
async def model(name: str, request: Request) -> Response:
    """One model that is served."""
    state = get_state(request)
    return Json(_model(name, state.registry.find(name), state.settings))


@router.post("/v1/completions")
async def completions(body: CompletionRequest, request: Request) -> Response:
    """Continue a text, or several."""
    state = get_state(request)
    check_echo(body)
    options = completion_options(body, state.settings.limits)
    options.update(read_grammar(body, state.settings.limits))
    prompts = split_prompts(body.prompt)
    check_prompts("prompt", prompts, state.settings.limits)
    check_suffix(body, prompts, state.settings.limits)
    several = "best_of" if "best_of" in options else "n"
    check_at_most(several, options[several] * len(prompts), state.settings.max_running)

    async def start(generation: Generation) -> CompletionAnswer:
        llm = generation.lease.llm
        answer = CompletionAnswer(generation, body, len(prompts))
        if needs_ids(body, prompts):
            prompts[:] = await asyncio.to_thread(make_prompts, llm, prompts, body)
        if body.echo:
            texts = await asyncio.to_thread(lambda: [_text(llm, prompt) for prompt in prompts])
            answer.before = [text for text in texts for _ in range(options["n"])]
        if body.prompt_logprobs is not None or (body.echo and body.logprobs is not None):
            await _score(body, answer, prompts, options)
        if body.max_tokens == 0 and body.echo:
            return answer
        ready = await _with_ids(body, answer, await _continued(body, generation, prompts), options["n"])
        await _start(body, generation, ready, options)
        return answer

    answer = await _start_answer(request, body, start, "prompt")
    if body.max_tokens == 0 and body.echo:
        return await _echo(answer, prompts, options["n"])
    return await _respond(request, body, answer)


@router.post("/v1/chat/completions")
async def chat(body: ChatRequest, request: Request) -> Response:
    """Answer a conversation."""
    state = get_state(request)
    legacy = body.functions is not None
    body = replace_functions(body)
    options = read_chat_options(body, state.settings.limits)
    check_at_most("n", options["n"], state.settings.max_running)

    async def start(generation: Generation) -> ChatAnswer:
        plan, prompt = await prepare_chat(body, generation, state.settings)
        answer = (FunctionAnswer if legacy else ChatAnswer)(generation, body, plan)
        if body.echo:
            answer.before = [last_answer(body)] * options["n"]
        prompts: list[Any] = [prompt]
        if body.truncate_prompt_tokens is not None or body.prompt_logprobs is not None:
            prompts = [await asyncio.to_thread(_cut_prompt, body, generation.lease.llm, prompt)]
        if body.prompt_logprobs is not None:
            await _score(body, answer, prompts, options)
        ready = await _with_ids(body, answer, await _continued(body, generation, prompts), options["n"])
        await _start(body, generation, ready, plan.options({"reasoning": True, **options}))
        return answer

    return await _respond(request, body, await _start_answer(request, body, start, "messages"))


async def _respond(
    request: Request, body: CompletionRequest | ChatRequest, answer: CompletionAnswer
) -> Response:
    return keep_stream(request, answer) if body.resumable else await respond(request, answer, body.stream)


async def _score(
    body: CompletionRequest | ChatRequest,
    answer: CompletionAnswer,
    prompts: list[Any],
    options: dict[str, Any],
) -> None:
    """Give the answer the log-probabilities of the prompts' tokens."""
    top = max(1, body.prompt_logprobs or 0, options.get("logprobs", 0))
    scored = await score_prompts(answer.generation, prompts, top, dict(options))
    answer.scored = [tokens for tokens in scored for _ in range(options["n"])]
    answer.prompt_tops = body.prompt_logprobs


async def _continued(
    body: CompletionRequest | ChatRequest, generation: Generation, prompts: list[Any]
) -> list[Any]:
    """The prompts, each with the ids behind it that the answer begins with."""
    begun = body.continue_token_ids
    if begun is None:
        return prompts
    if begun[-1] in generation.lease.llm.tokenizer.end_ids and not body.ignore_eos:
        raise field_error(
            "continue_token_ids",
            f"continue_token_ids ends with {begun[-1]}, which ends the text; there is nothing to go on with",
            "already_ended",
        )
    return [[*ids, *begun] for ids in await encode_prompts(generation, prompts)]


async def _with_ids(
    body: CompletionRequest | ChatRequest, answer: CompletionAnswer, prompts: list[Any], n: int
) -> list[Any]:
    """The prompts, whose ids or text the answer has from now on if they are asked for."""
    if not body.return_token_ids and not body.verbose:
        return prompts
    llm = answer.generation.lease.llm
    ready = await encode_prompts(answer.generation, prompts)
    if body.verbose:
        texts = await asyncio.to_thread(lambda: [llm.tokenizer.decode(ids, special=True) for ids in ready])
        answer.verbose = {"__verbose": {"prompt": texts[0] if len(texts) == 1 else texts}}
    if not body.return_token_ids:
        return ready
    ids = [prompt if all(type(token) is int for token in prompt) else None for prompt in ready]
    answer.prompts = [each for each in ids for _ in range(n)]
    answer.ends |= frozenset(body.stop_tokens or ())
    return ready


async def _start(
    body: CompletionRequest | ChatRequest, generation: Generation, prompts: list[Any], options: dict[str, Any]
) -> None:
    """Queue the texts, and the pin for when they are done."""
    check_allowed(body, generation.lease.llm.spec.n_vocab)
    if (name := body.cache_pin) is not None:
        (prompt,) = check_one(prompts, "cache_pin")
        prompts = [ids] = await encode_prompts(generation, [prompt])
        check_pin(generation, name, len(ids))
        generation.last = lambda: pin(generation, name, ids)
    if body.id_slot is not None and body.id_slot >= 0 and options["n"] == 1:
        prompts = await encode_prompts(generation, prompts)
        remember(generation, body.id_slot, prompts)
    await generation.start(prompts, options, follow=bool(body.stream and body.return_progress))


async def _echo(answer: CompletionAnswer, prompts: list[Any], n: int) -> Response:
    """The answer to a request for no new tokens: its prompts, with log-probabilities if they are wanted."""
    try:
        ids = await encode_prompts(answer.generation, prompts)
        results = [make_empty_result(len(prompt)) for prompt in ids for _ in range(n)]
        whole = await asyncio.to_thread(answer.whole, results)
        return await long_json(whole, sum(map(len, ids)) * n * (1 + (answer.tops or 0)))
    finally:
        answer.generation.close()


async def _start_answer(
    request: Request,
    body: CompletionRequest | ChatRequest,
    start: Callable[[Generation], Awaitable[Made]],
    prompt: str,
) -> Made:
    """Start an answer, and log the user; `prompt` is the field that holds the prompt."""
    request.scope["stretto"].update({"user": body.user[:100]} if body.user else {})
    if body.resumable and not body.stream:
        raise field_error(
            "resumable", "resumable needs stream: true; an answer in one piece cannot be read on"
        )
    return await start_answer(request, body.model, start, prompt, *shaping_fields(body)[:1])


@router.post("/v1/embeddings")
async def embeddings(body: EmbeddingRequest, request: Request) -> Response:
    """A vector for each text: its final hidden states, pooled."""
    state = get_state(request)
    texts = [unwrap_text(one) for one in split_prompts(body.input)]
    check_prompts("input", texts, state.settings.limits)
    async with lease_model(request, body.model, "input", verb="embed") as generation:
        how = Vectors(body.pooling, body.normalize, body.dimensions)
        vectors, n_tokens = await unless_gone(request, embed_texts(generation, texts, how))
    data = [
        {"object": "embedding", "index": index, "embedding": write_vector(vector, body.encoding_format)}
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


def check_one(prompts: list[Any], name: str) -> list[Any]:
    """Raise unless there is exactly one prompt."""
    if len(prompts) != 1:
        raise field_error(name, f"{name} is for a single prompt, not for {len(prompts)}")
    return prompts


def _cut_prompt(body: ChatRequest, llm: LLM, prompt: Any) -> list[int]:
    """The ids of a conversation, of which `truncate_prompt_tokens` keeps a part; to be called in a thread."""
    if body.max_completion_tokens is not None:
        body = body.model_copy(update={"max_tokens": body.max_completion_tokens})
    (ids,) = truncate_prompts(llm, [plain_ids(llm, prompt, "prompt_logprobs")], body)
    return list(ids)


def _text(llm: LLM, prompt: str | list[int]) -> str:
    return prompt if isinstance(prompt, str) else llm.tokenizer.decode(prompt)


def _model(name: str, served: ServedModel, settings: Settings) -> dict[str, Any]:
    """A model as clients of OpenAI, Anthropic, vLLM (`max_model_len`) and llama-server (`status`) read it."""
    length = find_context_length(served, settings)
    return {
        "id": name,
        "object": "model",
        "created": int(served.facts["modified"]),
        "owned_by": "stretto",
        **_for_anthropic(name, served, length),
        "context_length": length,
        "max_model_len": length,
        "root": served.path.name,
        "parent": None if name == served.name else served.name,
        "status": {"value": served.status},
    }


def _for_llama(name: str, served: ServedModel) -> dict[str, Any]:
    """A model as llama-server's clients read it, which look for what it can do."""
    able = list_capabilities(served)
    if "vision" in able or "audio" in able:
        able.append("multimodal")
    return {"name": name, "model": name, "type": "model", "capabilities": able}


def _for_anthropic(name: str, served: ServedModel, length: int) -> dict[str, Any]:
    """The fields of a model that Anthropic's clients read; they ask at the same path."""
    created = datetime.fromtimestamp(int(served.facts["modified"]), timezone.utc)
    return {
        "type": "model",
        "display_name": name,
        "created_at": created.isoformat(),
        "lifecycle": "active",
        "max_input_tokens": length,
    }


# `/tokenizer_info`: what vLLM's clients read about a tokenizer, by the names of tokenizer_config.json.

info_router = make_router("vLLM")


@info_router.get("/tokenizer_info")
async def tokenizer_info(
    request: Request,
    model: Annotated[
        str | None, Query(max_length=256, description="A model; without it, the first that generates.")
    ] = None,
) -> Response:
    """The special tokens, the chat template and the sizes of a model's tokenizer."""
    registry = get_state(request).registry
    served = registry.find(model or registry.first("generate"))
    verbs = served.facts["verbs"]
    verb = "generate" if "generate" in verbs else verbs[0]
    async with lease_model(request, served.name, verb=verb) as generation:
        return Json(_facts(generation.lease.llm, served))


def _facts(llm: Any, served: ServedModel) -> dict[str, Any]:
    if isinstance(llm, TaskModel):
        raise unsupported(f"{llm.name} has no tokenizer that can be shown", "model")
    tokenizer = llm.tokenizer
    specials = sorted(tokenizer.specials.items(), key=lambda one: one[1])
    named = {
        "bos_token": tokenizer.bos_id,
        "eos_token": tokenizer.eos_id,
        "unk_token": tokenizer.vocabulary.unknown_id,
    }
    return {
        "tokenizer_class": type(tokenizer).__name__,
        **{name: None if token is None else tokenizer.spelled(token) for name, token in named.items()},
        "add_bos_token": tokenizer.add_bos,
        "add_eos_token": tokenizer.add_eos,
        "additional_special_tokens": [text for text, _ in specials],
        "added_tokens_decoder": {str(token): {"content": text, "special": True} for text, token in specials},
        "model_max_length": llm.context_length,
        "vocab_size": tokenizer.n_vocab,
        "chat_template": served.facts["template"] or None,
    }
