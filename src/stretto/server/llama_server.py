"""`/tokenize`, `/detokenize`, `/infill`: llama-server's endpoints, for the clients that editors have."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from stretto import Result, Token
from stretto.server.answers import long_json
from stretto.server.errors import ApiError, Json, body_of, translate
from stretto.server.generation import Generation, begin, started, unless_gone
from stretto.server.open_response import EVENTS, event
from stretto.server.options import check_prompts
from stretto.server.schemas import Body, Name, Number, Stop, Text
from stretto.server.state import State, state_of
from stretto.server.streamed import Streamed
from stretto.server.tasks import rerank
from stretto.text.infill import infill_prompt
from stretto.text.tokenizer import Tokenizer

router = APIRouter(tags=["llama-server"])

NO_EFFECT = "Accepted; without effect here."
STOP_TYPES = {"stop": "eos", "length": "limit", "timeout": "limit", "cancelled": "none"}

for _path in ("/rerank", "/v1/reranking", "/v2/rerank"):
    router.post(_path)(rerank)


class TokenizeText(Body):
    """`POST /tokenize`."""

    content: Text
    add_special: bool = Field(False, description="With BOS, as the model asks.")
    parse_special: bool = Field(True, description="Special tokens in the text are tokens.")
    with_pieces: bool = Field(False, description="Each token with its text.")
    model: Name | None = None


class DetokenizeTokens(Body):
    """`POST /detokenize`."""

    tokens: Annotated[list[Annotated[int, Field(ge=0, lt=1 << 31)]], Field(max_length=1 << 20)]
    model: Name | None = None


class ExtraFile(Body):
    """Another file, which comes before the gap."""

    filename: Annotated[str, Field(max_length=1024)] | None = None
    text: Text
    time: int | None = None


class InfillRequest(Body):
    """`POST /infill`: the text for the gap between a prefix and a suffix."""

    model: Name | None = None
    input_prefix: Text = ""
    input_suffix: Text = ""
    input_extra: Annotated[list[ExtraFile], Field(max_length=256)] | None = None
    prompt: Annotated[Text, Field(description="The beginning of the text for the gap.")] | None = ""
    n_predict: Annotated[int, Field(ge=-1, lt=1 << 31)] | None = None
    temperature: Annotated[Number, Field(ge=0, le=100)] | None = None
    top_k: Annotated[int, Field(ge=0, lt=1 << 31)] | None = None
    top_p: Annotated[Number, Field(gt=0, le=1)] | None = None
    min_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-1, lt=1 << 64)] | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=64)] | None = None
    stream: bool | None = False
    t_max_predict_ms: Annotated[int, Field(ge=0, lt=1 << 31)] | None = None
    t_max_prompt_ms: Annotated[int, Field(ge=0, description=NO_EFFECT)] | None = None
    n_indent: Annotated[int, Field(ge=0, description=NO_EFFECT)] | None = None
    samplers: (
        Annotated[list[Annotated[str, Field(max_length=32)]], Field(max_length=32, description=NO_EFFECT)]
        | None
    ) = None
    cache_prompt: Annotated[bool, Field(description=NO_EFFECT)] | None = None
    id_slot: Annotated[int, Field(description=NO_EFFECT)] | None = None
    response_fields: (
        Annotated[list[Annotated[str, Field(max_length=64)]], Field(max_length=64, description=NO_EFFECT)]
        | None
    ) = None


@router.post("/tokenize")
async def tokenize(body: TokenizeText, request: Request) -> Response:
    """The tokens of a text."""

    def work(tokenizer: Tokenizer) -> dict[str, Any]:
        bos = (tokenizer.add_bos or None) if body.add_special else False
        ids = tokenizer.encode(body.content, special=body.parse_special, bos=bos)
        if not body.with_pieces:
            return {"tokens": ids}
        return {"tokens": [{"id": token, "piece": _piece(tokenizer, token)} for token in ids]}

    state = state_of(request)
    check_prompts("content", [body.content], state.settings.limits)
    return await _tokenized(state, body.model, request, work, len(body.content))


@router.post("/detokenize")
async def detokenize(body: DetokenizeTokens, request: Request) -> Response:
    """The text of tokens."""
    state = state_of(request)
    return await _tokenized(
        state,
        body.model,
        request,
        lambda tokenizer: {"content": tokenizer.decode(body.tokens, special=True)},
        len(body.tokens),
    )


@router.post("/infill")
async def infill(body: InfillRequest, request: Request) -> Response:
    """The text between a prefix and a suffix."""
    state = state_of(request)
    name = default_model(state, body.model)
    texts = [body.input_prefix, body.input_suffix, body.prompt or ""]
    check_prompts(
        "input_prefix",
        ["".join([*texts, *(one.text for one in body.input_extra or [])])],
        state.settings.limits,
    )

    async def start(generation: Generation) -> list[int]:
        prompt = await asyncio.to_thread(_infill_ids, generation.lease.llm.tokenizer, body)
        await generation.start([prompt], {**_options(body), "reasoning": False})
        return prompt

    request.scope["stretto"].update(model=name)
    generation, _ = await started(request, name, start, "input_prefix")
    try:
        if body.stream:
            return Streamed(generation, generation.texts, _Events(generation, name), EVENTS)
        (result,) = await unless_gone(request, generation.results())
        answer = {**_ended(generation, name, result), "content": result.text}
        generation.close()
        return Json(answer)
    except BaseException:
        generation.close()
        raise


def default_model(state: State, name: str | None) -> str:
    """The model that a request means: the one it names, or the first that generates."""
    if name is not None:
        return name
    slots = state.registry.slots.values()
    found = next((slot.name for slot in slots if "generate" in slot.facts["verbs"]), None)
    if found is None:
        raise ApiError(400, "model is missing: no model here generates text", param="model")
    return found


async def _tokenized(state: State, name: str | None, request: Request, work: Any, n: int) -> Response:
    generation = await begin(state, default_model(state, name), request)
    try:
        found = await asyncio.to_thread(work, generation.lease.llm.tokenizer)
    except Exception as error:
        raise translate(error, "content") from error
    finally:
        generation.close()
    return await long_json(found, n)


def _infill_ids(tokenizer: Tokenizer, body: InfillRequest) -> list[int]:
    files = [(one.filename or "tmp", one.text) for one in body.input_extra or []]
    ids = infill_prompt(tokenizer, body.input_prefix, body.input_suffix, files=files)
    return ids + (tokenizer.encode_inside(body.prompt) if body.prompt else [])


def _options(body: InfillRequest) -> dict[str, Any]:
    same = ("temperature", "top_k", "top_p", "min_p", "stop")
    options: dict[str, Any] = {name: getattr(body, name) for name in same}
    options = {"n": 1, **{name: value for name, value in options.items() if value is not None}}
    if body.seed is not None and body.seed >= 0:
        options["seed"] = body.seed
    if body.n_predict is not None and body.n_predict >= 0:
        options["max_tokens"] = max(1, body.n_predict)
    if body.t_max_predict_ms:
        options["timeout"] = body.t_max_predict_ms / 1000
    return options


def _ended(generation: Generation, name: str, result: Result) -> dict[str, Any]:
    spent = generation.timings([result])
    kind = STOP_TYPES[result.finish_reason]
    is_word = isinstance(result.stop_reason, str) and kind == "eos"
    return {
        "content": "",
        "stop": True,
        "model": name,
        "tokens_predicted": result.usage.completion_tokens,
        "tokens_evaluated": result.usage.prompt_tokens,
        "tokens_cached": result.usage.cached_tokens,
        "truncated": False,
        "stop_type": "word" if is_word else kind,
        "stopping_word": result.stop_reason if is_word else "",
        "timings": {
            "prompt_n": result.usage.prompt_tokens,
            "prompt_ms": 1000 * spent["first_token"],
            "predicted_n": result.usage.completion_tokens,
            "predicted_ms": 1000 * spent["decode"],
            "predicted_per_second": spent["tokens_per_second"],
        },
    }


class _Events:
    """The text for a gap as server-sent events."""

    def __init__(self, generation: Generation, name: str) -> None:
        self._generation = generation
        self._name = name

    def more(self, news: list[tuple[int, Token]]) -> bytes:
        """An event for every token that has text, and the last one."""
        out = []
        for _, token in news:
            if token.text:
                out.append(event({"content": token.text, "stop": False}))
            if token.finish_reason is not None:
                result = self._generation.texts.result(0)
                self._generation.check(result)
                out.append(event(_ended(self._generation, self._name, result)))
        return "".join(out).encode()

    async def end(self) -> bytes:
        """The last event has been sent."""
        return b""

    def failed(self, error: ApiError) -> bytes:
        """The error is an event too, and the last one."""
        return event(body_of(error, "/infill")).encode()


def _piece(tokenizer: Tokenizer, token: int) -> str | list[int]:
    """The text of a token, or its bytes where they are no text."""
    data = tokenizer.token_bytes(token)
    try:
        return data.decode() if data else tokenizer.spelled(token)
    except UnicodeDecodeError:
        return list(data)
