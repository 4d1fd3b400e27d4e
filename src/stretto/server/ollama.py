"""`/api/…`: Ollama's endpoints. Streams are lines of JSON."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from stretto import Result, Token, __version__
from stretto.server.answers import long_json
from stretto.server.callers import require_admin
from stretto.server.calls import CallWatcher, ollama_calls, tool_plan
from stretto.server.chat import ollama_prompt
from stretto.server.embedding import Vectors, embedded
from stretto.server.errors import ApiError, Json, body_of, dumps, translate
from stretto.server.generation import Generation, begin, started, unless_gone
from stretto.server.ollama_schemas import (
    Common,
    EmbedRequest,
    GenerateRequest,
    OllamaChatRequest,
    OllamaMessage,
    Options,
    ShowRequest,
)
from stretto.server.openai import prompts_of
from stretto.server.options import check_prompts
from stretto.server.slots import Slot
from stretto.server.state import State, state_of
from stretto.server.streamed import Streamed
from stretto.server.structured import ollama_grammar
from stretto.text.reasoning import find_format
from stretto.tools.plan import ToolPlan

Fields = Callable[[str, str], dict[str, Any]]  # the fields of a piece: its text, its reasoning

LINES = "application/x-ndjson"
TAG = ":latest"
NAMES = {"repeat_penalty": "repetition_penalty"}
SAME = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repeat_penalty",
    "presence_penalty",
    "frequency_penalty",
    "stop",
)
WORDS = {"stop": "stop", "length": "length", "timeout": "timeout", "cancelled": "cancelled"}

router = APIRouter(tags=["Ollama"])


@router.get("/api/version")
async def version() -> Response:
    """Stretto's version."""
    return Json({"version": __version__})


@router.get("/api/tags")
async def tags(request: Request) -> Response:
    """The models that are served."""
    slots = state_of(request).registry.slots.values()
    listed = [
        {
            "name": _tagged(slot.name),
            "model": _tagged(slot.name),
            "modified_at": _time(slot.facts["modified"]),
            "size": slot.facts["file_bytes"],
            "digest": "",
            "details": _details(slot),
        }
        for slot in slots
    ]
    return Json({"models": listed})


@router.post("/api/show")
async def show(body: ShowRequest, request: Request) -> Response:
    """Details of a model."""
    slot = state_of(request).registry.find(_name(body.model))
    facts = slot.facts
    arch = facts["architecture"]
    return Json(
        {
            "modelfile": "",
            "parameters": "",
            "template": facts["template"],
            "license": facts["license"],
            "details": _details(slot),
            "model_info": {
                "general.architecture": arch,
                "general.parameter_count": facts["parameters"],
                f"{arch}.context_length": facts["context_length"],
            },
            "capabilities": _capabilities(facts),
            "modified_at": _time(facts["modified"]),
        }
    )


@router.post("/api/generate")
async def generate(body: GenerateRequest, request: Request) -> Response:
    """Answer a prompt."""
    state = state_of(request)
    if not body.prompt and not body.images:
        return await _load(state, body, request, {"response": ""})
    messages = [{"role": "system", "content": body.system}] if body.system else []
    messages.append({"role": "user", "content": body.prompt or ""})
    images = {len(messages) - 1: body.images or []}
    if body.raw and body.images:
        raise ApiError(400, "images have no place in a raw prompt; leave raw away", param="images")
    whole = body.prompt if body.raw else None
    if body.raw and body.think is not None:
        raise ApiError(400, "think has no place in a raw prompt; leave it out", param="think")
    return await _generated(state, body, request, messages, images, whole, _response)


@router.post("/api/chat")
async def chat(body: OllamaChatRequest, request: Request) -> Response:
    """Answer a conversation."""
    state = state_of(request)
    if not body.messages:
        return await _load(state, body, request, {"message": {"role": "assistant", "content": ""}})
    messages = [_message(message) for message in body.messages]
    images = {index: message.images or [] for index, message in enumerate(body.messages)}
    return await _generated(state, body, request, messages, images, None, _answer)


@router.post("/api/embed")
async def embed(body: EmbedRequest, request: Request) -> Response:
    """A vector for each text."""
    state = state_of(request)
    texts = prompts_of(body.input)
    check_prompts("input", texts, state.settings.limits)
    generation = await begin(state, _name(body.model), request, "embed")
    try:
        how = Vectors(dimensions=body.dimensions)
        vectors, n_tokens = await unless_gone(request, embedded(generation, texts, how))
    except Exception as error:
        raise translate(error, "input") from error
    finally:
        generation.close()
    spent = generation.spent()
    answer = {
        "model": body.model,
        "embeddings": [[float(number) for number in vector] for vector in vectors],
        "total_duration": _nanoseconds(spent["total"]),
        "load_duration": _nanoseconds(spent["load"]),
        "prompt_eval_count": n_tokens,
    }
    return await long_json(answer, sum(len(vector) for vector in vectors))


async def _generated(
    state: State,
    body: GenerateRequest | OllamaChatRequest,
    request: Request,
    messages: list[dict[str, Any]],
    images: dict[int, list[str]],
    whole: str | None,
    fields: Fields,
) -> Response:
    limits = state.settings.limits
    options = _options(body.options)
    options.update(ollama_grammar(body.format, limits))
    check_prompts("prompt" if whole else "messages", [str(m["content"]) for m in messages], limits)
    tools = body.tools if isinstance(body, OllamaChatRequest) else None

    async def start(generation: Generation) -> ToolPlan:
        llm = generation.lease.llm
        _check_context(body.options, llm.context_length)
        plan = await tool_plan(llm, tools, None, limits)
        prompt = whole or await ollama_prompt(generation, messages, images, plan, state.settings, body.think)
        await generation.start([prompt], plan.options({**options, "reasoning": whole is None}))
        return plan

    request.scope["stretto"].update(model=body.model)
    generation, plan = await started(request, _name(body.model), start, "prompt", "format")
    head = {"model": body.model, "created_at": _now()}
    try:
        if body.stream is not False:
            lines = _Lines(generation, head, fields, plan)
            return Streamed(generation, generation.texts, lines, LINES)
        (result,) = map(plan.read, await unless_gone(request, generation.results()))
        ended = {
            **head,
            **_with_calls(fields(result.text, result.reasoning), result),
            **_end(generation, result),
        }
        generation.close()
        return Json(ended)
    except BaseException:
        generation.close()
        raise


class _Lines:
    """The answer as lines of JSON."""

    def __init__(
        self,
        generation: Generation,
        head: dict[str, Any],
        fields: Fields,
        plan: ToolPlan,
    ) -> None:
        self._generation = generation
        self._head = head
        self._fields = fields
        tokenizer = generation.lease.llm.tokenizer
        self._watcher = CallWatcher(plan, tokenizer) if plan.reader is not None else None

    def more(self, news: list[tuple[int, Token]]) -> bytes:
        """A line for every token that has text."""
        out = []
        for _, token in news:
            text = token.text if self._watcher is None else self._watcher.push(token)
            result = None
            if token.finish_reason is not None:
                result = self._generation.texts.result(0)
                self._generation.check(result)
                if self._watcher is not None:
                    rest, result = self._watcher.end(result)
                    text += rest
            if token.is_reasoning and token.text:
                out.append({**self._head, **self._fields("", token.text), "done": False})
                text = text.removeprefix(token.text)
            if text or (result is not None and result.tool_calls):
                piece = self._fields(text, "")
                piece = piece if result is None else _with_calls(piece, result)
                out.append({**self._head, **piece, "done": False})
            if result is not None:
                out.append({**self._head, **self._fields("", ""), **_end(self._generation, result)})
        return "".join(dumps(line) + "\n" for line in out).encode()

    async def end(self) -> bytes:
        """The last line has been sent."""
        return b""

    def failed(self, error: ApiError) -> bytes:
        """The error is a line too, and the last one."""
        return (dumps(body_of(error, "/api/")) + "\n").encode()


async def _load(state: State, body: Common, request: Request, empty: dict[str, Any]) -> Response:
    """Without a prompt a model is loaded, or with `keep_alive` 0 unloaded."""
    name = _name(body.model)
    head = {"model": body.model, "created_at": _now(), **empty, "done": True}
    if body.keep_alive in (0, "0", "0s"):
        require_admin(request)
        await state.registry.unload(name)
        return Json({**head, "done_reason": "unload"})
    generation = await begin(state, name, request)
    generation.close()
    return Json({**head, "done_reason": "load"})


def _options(given: Options | None) -> dict[str, Any]:
    options: dict[str, Any] = {"n": 1}
    if given is None:
        return options
    options.update(
        {NAMES.get(name, name): value for name in SAME if (value := getattr(given, name)) is not None}
    )
    if given.seed is not None:
        options["seed"] = given.seed % (1 << 64)
    if given.num_predict is not None and given.num_predict > 0:
        options["max_tokens"] = given.num_predict
    if given.num_predict == 0:
        raise ApiError(
            400, "options.num_predict must be -1, -2 or above 0, not 0", param="options.num_predict"
        )
    return options


def _check_context(given: Options | None, length: int) -> None:
    if given is not None and given.num_ctx is not None and given.num_ctx > length:
        raise ApiError(
            400,
            f"options.num_ctx is {given.num_ctx:,}, and the context has {length:,} tokens; start the server "
            "with more --cells, if the model can use them",
            param="options.num_ctx",
        )


def _end(generation: Generation, result: Result) -> dict[str, Any]:
    spent = generation.timings([result])
    return {
        "done": True,
        "done_reason": WORDS[result.finish_reason],
        "total_duration": _nanoseconds(spent["total"]),
        "load_duration": _nanoseconds(spent["load"]),
        "prompt_eval_count": result.usage.prompt_tokens,
        "prompt_eval_duration": _nanoseconds(spent["first_token"]),
        "eval_count": result.usage.completion_tokens,
        "eval_duration": _nanoseconds(spent["decode"]),
    }


def _with_calls(fields: dict[str, Any], result: Result) -> dict[str, Any]:
    if result.tool_calls:
        fields["message"]["tool_calls"] = ollama_calls(result)
    return fields


def _response(text: str, thoughts: str) -> dict[str, Any]:
    """The fields of an answer to a prompt."""
    return {"response": text, **({"thinking": thoughts} if thoughts else {})}


def _answer(text: str, thoughts: str) -> dict[str, Any]:
    """The fields of an answer in a conversation."""
    message = {"role": "assistant", "content": text}
    return {"message": {**message, "thinking": thoughts} if thoughts else message}


def _message(message: OllamaMessage) -> dict[str, Any]:
    fields: dict[str, Any] = {"role": message.role, "content": message.content or ""}
    if message.thinking:
        fields["reasoning_content"] = message.thinking
    if message.tool_calls:
        fields["tool_calls"] = [
            {
                "type": "function",
                "function": {"name": call.function.name, "arguments": call.function.arguments},
            }
            for call in message.tool_calls
        ]
    if message.tool_name:
        fields["name"] = message.tool_name
    return fields


def _details(slot: Slot) -> dict[str, Any]:
    facts = slot.facts
    formats = [name for name in facts["formats"] if name != "F32"] or ["F32"]
    return {
        "parent_model": "",
        "format": "gguf",
        "family": facts["architecture"],
        "families": [facts["architecture"]],
        "parameter_size": f"{facts['parameters'] / 1e6:.0f}M",
        "quantization_level": formats[0],
    }


def _capabilities(facts: dict[str, Any]) -> list[str]:
    extra = {"vision": facts["vision"], "thinking": find_format(facts["template"]) is not None}
    return ["completion", "embedding", *(name for name, there in extra.items() if there)]


def _name(model: str) -> str:
    """A model's name without the tag that Ollama's clients append."""
    return model.removesuffix(TAG)


def _tagged(name: str) -> str:
    return name + TAG


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat()


def _now() -> str:
    return datetime.now(timezone.utc).isoformat()


def _nanoseconds(seconds: float) -> int:
    return int(1e9 * seconds)
