"""`/api/generate`, `chat`, `embed`, `embeddings`: Ollama's endpoints for texts. Streams are lines of JSON."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from fastapi import Request
from starlette.responses import Response

from stretto import Result, Token
from stretto.errors import InvalidRequest
from stretto.server.generation.answer import clamp_logprob
from stretto.server.generation.calls import CallWatcher, ollama_calls, tool_plan
from stretto.server.generation.chat import ollama_prompt, split_prompts
from stretto.server.generation.fields import plain_options
from stretto.server.generation.generation import Generation, begin, ended_by, started, unless_gone
from stretto.server.generation.grammars import ollama_grammar
from stretto.server.generation.options import check_prompts
from stretto.server.generation.vectors import Vectors, embedded
from stretto.server.http.bodies import make_router
from stretto.server.http.callers import require_admin
from stretto.server.http.errors import ApiError, Json, body_of, dumps, translate
from stretto.server.http.state import State, state_of
from stretto.server.http.streaming import LINES, Streamed, long_json
from stretto.server.ollama.schemas import (
    Common,
    EmbeddingsRequest,
    EmbedRequest,
    GenerateRequest,
    OllamaChatRequest,
    OllamaMessage,
    Options,
    RequestOptions,
)
from stretto.server.ollama.store import Made, MadeModels
from stretto.text.infill import infill_prompt
from stretto.text.tokenizer import Tokenizer
from stretto.tools.plan import ToolPlan

# Ollama's runtime options as those of the engine: honoured, without effect here, or refused.

# Options that would change the answer, and the values at which they do not.
NEUTRAL: dict[str, tuple[float, ...]] = {
    "mirostat": (0,),
    "typical_p": (1,),
    "tfs_z": (1,),
    "rope_frequency_base": (0,),
    "rope_frequency_scale": (0,),
}


def engine_options(given: Options | None) -> dict[str, Any]:
    """The engine's options; raises for those that would change the answer and are not supported."""
    options: dict[str, Any] = {"n": 1}
    if given is None:
        return options
    _check_neutral(given)
    options.update(plain_options(given))
    if given.repeat_penalty is not None:
        options["repetition_penalty"] = given.repeat_penalty
    if options.get("top_k") == -1:
        options["top_k"] = 0  # all
    if given.repeat_last_n == 0:
        options.pop("repetition_penalty", None)  # it looks at no token
    if given.seed is not None:
        options["seed"] = given.seed % (1 << 64)
    if given.num_predict is not None and given.num_predict >= 0:
        options["max_tokens"] = given.num_predict
    return options


def tell_unknown(given: Options | None, warn: Callable[[str, str], None]) -> None:
    """Tell of options that are not known here: as Ollama does, they are left out."""
    for name in (given.model_extra or {}) if given is not None else ():
        warn(f"options.{name[:60]}", "is no option that is known here; it was left out")


def check_context(given: Options | None, length: int) -> None:
    """Raise if a longer context is asked for than there is."""
    if given is not None and given.num_ctx is not None and given.num_ctx > length:
        raise ApiError(
            400,
            f"options.num_ctx is {given.num_ctx:,}, and the context has {length:,} tokens; start the server "
            "with more --cells, if the model can use them",
            param="options.num_ctx",
        )


def merged(parameters: dict[str, Any], given: Options | None) -> Options | None:
    """The options of a request over the parameters of a made model."""
    if not parameters:
        return given
    own = {} if given is None else given.model_dump(exclude_none=True)  # those that are not known too
    return RequestOptions.model_validate({**parameters, **own})


def _check_neutral(given: Options) -> None:
    for name, neutral in NEUTRAL.items():
        value = getattr(given, name)
        if value is not None and value not in neutral:
            raise ApiError(
                400,
                f"options.{name} is not supported here; leave it out, or give {neutral[0]}",
                param=f"options.{name}",
                code="unsupported",
            )
    penalty = given.repeat_penalty
    if given.repeat_last_n not in (None, -1, 0) and penalty is not None and penalty != 1:
        raise ApiError(
            400,
            "options.repeat_last_n: the penalty looks at the whole text here; leave it out, or give -1 or 0",
            param="options.repeat_last_n",
            code="unsupported",
        )


# The part of Go's templates that Ollama's `template` needs: fields, `if`, `else`, `end`, and trimming.
#
#     >>> render("{{ if .System }}<s>{{ .System }}</s>{{ end }}{{ .Prompt }}", {"System": "", "Prompt": "Hi"})
#     'Hi'
#
# What comes after `{{ .Response }}` belongs behind the answer, and is left out. Anything else is refused.

MAX_CHARACTERS = 64 << 10
_ACTION = re.compile(r"\{\{(-\s)?\s*(.*?)\s*(\s-)?\}\}", re.DOTALL)
_FIELD = re.compile(r"\.(\w+)")


def render(template: str, fields: Mapping[str, str]) -> str:
    """The text of a template up to the answer."""
    if len(template) > MAX_CHARACTERS:
        raise _wrong(f"is longer than {MAX_CHARACTERS} characters")
    out: list[str] = []
    shown = [True]  # of the blocks that are open
    trims = False
    at = 0
    for match in _ACTION.finditer(template):
        text = template[at : match.start()]
        text = text.lstrip() if trims else text
        text = text.rstrip() if match[1] else text
        at, trims = match.end(), match[3] is not None
        if all(shown):
            out.append(text)
        action = match[2]
        if action == ".Response":
            if all(shown):
                return "".join(out)
        elif _follow(action, fields, shown) and all(shown):
            out.append(fields[action[1:]])
    if len(shown) != 1:
        raise _wrong("has an if without an end")
    rest = template[at:]
    return "".join([*out, rest.lstrip() if trims else rest])


def _follow(action: str, fields: Mapping[str, str], shown: list[bool]) -> bool:
    """Take an action; True for a field that is to be written."""
    if action.startswith("/*"):
        return False
    if action.startswith("if "):
        shown.append(bool(_value(action[3:].strip(), fields)))
    elif action == "else" and len(shown) > 1:
        shown[-1] = not shown[-1]
    elif action == "end" and len(shown) > 1:
        shown.pop()
    else:
        _value(action, fields)
        return True
    return False


def _value(name: str, fields: Mapping[str, str]) -> str:
    match = _FIELD.fullmatch(name)
    if match is None or match[1] not in fields:
        known = ", ".join(f".{field}" for field in (*fields, "Response"))
        raise _wrong(f"has {name[:60]!r}; known are {known}, if, else and end")
    return fields[match[1]]


def _wrong(reason: str) -> InvalidRequest:
    return InvalidRequest(f"template {reason}", param="template")


Fields = Callable[[str, str], dict[str, Any]]  # the fields of a piece: its text, its reasoning

WORDS = {"repetition": "length"} | {word: word for word in ("stop", "length", "timeout", "cancelled")}

router = make_router("Ollama")


@dataclass
class _Asked:
    """A request for a text: its messages or its whole prompt, and the fields of its answer."""

    body: GenerateRequest | OllamaChatRequest
    made: Made
    messages: list[dict[str, Any]]
    images: dict[int, list[str]]
    fields: Fields
    whole: Callable[[Tokenizer], str | list[int]] | None = None  # the prompt, if it is not from messages
    context: list[int] | None = None  # the tokens before; None: they are not asked for in the answer
    seen: list[int] = field(default_factory=list)  # the prompt's tokens, where they are

    @property
    def tops(self) -> int | None:
        """How many alternatives of each token are asked for; None: no log-probabilities."""
        if not self.body.logprobs:
            if self.body.top_logprobs:
                raise ApiError(400, "top_logprobs needs logprobs: true", param="top_logprobs")
            return None
        return self.body.top_logprobs or 0


@router.post("/api/generate")
async def generate(body: GenerateRequest, request: Request) -> Response:
    """Answer a prompt."""
    state = state_of(request)
    _, made = state.part(MadeModels).resolve(body.model, state.registry)
    if not body.prompt and not body.images and not body.suffix:
        return await _load(state, body, made, request, {"response": ""})
    system = body.system or made.system
    messages = [{"role": "system", "content": system}] if system else []
    messages += [_message(OllamaMessage.model_validate(one)) for one in made.messages]
    messages.append({"role": "user", "content": body.prompt or ""})
    images = {len(messages) - 1: body.images or []}
    asked = _Asked(body, made, messages, images, _response, _whole(body, made, system))
    if asked.whole is None and not body.images:
        asked.context = body.context or []
    elif body.context:
        raise ApiError(400, "context has no place beside raw, suffix, template or images", param="context")
    return await _generated(state, asked, request)


@router.post("/api/chat")
async def chat(body: OllamaChatRequest, request: Request) -> Response:
    """Answer a conversation."""
    state = state_of(request)
    _, made = state.part(MadeModels).resolve(body.model, state.registry)
    if not body.messages:
        return await _load(state, body, made, request, {"message": {"role": "assistant", "content": ""}})
    given = [*(OllamaMessage.model_validate(one) for one in made.messages), *body.messages]
    if made.system and all(message.role != "system" for message in given):
        given.insert(0, OllamaMessage(role="system", content=made.system))
    images = {index: message.images or [] for index, message in enumerate(given)}
    asked = _Asked(body, made, [_message(message) for message in given], images, _answer)
    return await _generated(state, asked, request)


@router.post("/api/embed")
async def embed(body: EmbedRequest, request: Request) -> Response:
    """A vector for each text."""
    texts = split_prompts(body.input) if body.input else []
    how = Vectors(dimensions=body.dimensions)
    vectors, answer = await _embedded(body.model, texts, request, how, body.options)
    found = {"model": body.model, "embeddings": vectors, **answer}
    return await long_json(found, sum(len(vector) for vector in vectors))


@router.post("/api/embeddings")
async def embeddings(body: EmbeddingsRequest, request: Request) -> Response:
    """The vector of one text, as older clients ask for it: of any length."""
    texts, how = [body.prompt] if body.prompt else [], Vectors(normalize=False)
    vectors, _ = await _embedded(body.model, texts, request, how, body.options)
    return await long_json({"embedding": vectors[0] if vectors else []}, sum(map(len, vectors)))


async def _embedded(
    model: str, texts: list[Any], request: Request, how: Vectors, options: Options | None
) -> tuple[list[list[float]], dict[str, Any]]:
    state = state_of(request)
    check_prompts("input", texts, state.settings.limits)
    _, made = state.part(MadeModels).resolve(model, state.registry)
    generation = await begin(state, made.base, request, "embed")
    vectors: Any = []
    n_tokens = 0
    try:
        tell_unknown(options, generation.warn)
        if texts:  # without any the model is loaded, and that is all
            vectors, n_tokens = await unless_gone(request, embedded(generation, texts, how))
    except Exception as error:
        raise translate(error, "input") from error
    finally:
        generation.close()
    spent = generation.spent()
    numbers = [[float(number) for number in vector] for vector in vectors]
    return numbers, {
        "total_duration": _nanoseconds(spent["total"]),
        "load_duration": _nanoseconds(spent["load"]),
        "prompt_eval_count": n_tokens,
        **generation.warnings,
    }


def _whole(body: GenerateRequest, made: Made, system: str) -> Callable[[Tokenizer], str | list[int]] | None:
    """A function that makes the prompt of a request that does not use the model's template."""
    prompt, suffix, template = body.prompt or "", body.suffix, body.template or made.template
    if not (body.raw or suffix or template):
        return None
    if body.images:
        raise ApiError(400, "images have no place in a raw prompt; leave raw away", param="images")
    if body.think:
        raise ApiError(400, "think has no place in a raw prompt; leave it out", param="think")
    if suffix:
        if body.raw or body.system or body.template:
            raise ApiError(400, "suffix has no place beside raw, system or template", param="suffix")
        return lambda tokenizer: infill_prompt(tokenizer, prompt, suffix)
    if body.raw:
        return lambda tokenizer: prompt
    return lambda tokenizer: render(template, {"System": system, "Prompt": prompt})


async def _generated(state: State, asked: _Asked, request: Request) -> Response:
    limits, body = state.settings.limits, asked.body
    wanted = merged(asked.made.parameters, body.options)
    options = engine_options(wanted)
    options.update(ollama_grammar(body.format, limits))
    tops = asked.tops
    if tops is not None:
        options["logprobs"] = max(1, tops)
    texts = [str(message["content"]) for message in asked.messages]
    check_prompts("prompt" if asked.whole else "messages", texts, limits)
    tools = body.tools if isinstance(body, OllamaChatRequest) else None

    async def start(generation: Generation) -> ToolPlan:
        llm = generation.lease.llm
        check_context(wanted, llm.context_length)
        tell_unknown(wanted, generation.warn)
        plan = await tool_plan(llm, tools, None, limits, caller=generation.caller.name)
        prompt = await _prompt(generation, asked, plan, state)
        await generation.start([prompt], plan.options({**options, "reasoning": asked.whole is None}))
        return plan

    request.scope["stretto"].update(model=body.model)
    generation, plan = await started(request, asked.made.base, start, "prompt", "format")
    head = {"model": body.model, "created_at": _now()}
    try:
        if body.stream is not False:
            lines = _Lines(generation, head, asked, plan)
            return Streamed(generation, generation.texts, lines, LINES)
        (result,) = map(plan.read, await unless_gone(request, generation.results()))
        ended = {
            **head,
            **_with_calls(asked.fields(result.text, result.reasoning), result),
            **_logprobs(generation, result.logprobs or [], tops),
            **_end(generation, result, asked),
        }
        generation.close()
        return Json(ended)
    except BaseException:
        generation.close()
        raise


async def _prompt(generation: Generation, asked: _Asked, plan: ToolPlan, state: State) -> Any:
    tokenizer = generation.lease.llm.tokenizer
    if asked.whole is not None:
        made = await asyncio.to_thread(asked.whole, tokenizer)
        if isinstance(made, list):  # around a gap
            asked.context, asked.seen = [], made
        return made
    prompt = await ollama_prompt(
        generation, asked.messages, asked.images, plan, state.settings, asked.body.think
    )
    before = asked.context
    if before is None:
        return prompt

    def continued() -> list[int]:
        ids = prompt()
        if before and ids[:1] == [tokenizer.bos_id]:
            ids = ids[1:]
        asked.seen = [*before, *ids]
        return asked.seen

    return continued


def _logprobs(generation: Generation, tokens: list[Token], tops: int | None) -> dict[str, Any]:
    """The field `logprobs` of an answer, if it is asked for."""
    if tops is None:
        return {}
    tokenizer = generation.lease.llm.tokenizer

    def entry(token: int, logprob: float | None) -> dict[str, Any]:
        data = tokenizer.token_bytes(token)
        return {"token": tokenizer.spelled(token), "logprob": clamp_logprob(logprob), "bytes": list(data)}

    known = [token for token in tokens if token.id is not None]
    return {
        "logprobs": [
            {
                **entry(token.id or 0, token.logprob),
                **(
                    {"top_logprobs": [entry(one.token, one.logprob) for one in token.top[:tops]]}
                    if tops
                    else {}
                ),
            }
            for token in known
        ]
    }


class _Lines:
    """The answer as lines of JSON."""

    def __init__(
        self,
        generation: Generation,
        head: dict[str, Any],
        asked: _Asked,
        plan: ToolPlan,
    ) -> None:
        self._generation = generation
        self._head = head
        self._asked = asked
        self._fields = asked.fields
        tokenizer = generation.lease.llm.tokenizer
        self._watcher: CallWatcher | None = None
        if plan.reader is not None:  # calls come at the end, when they are whole
            self._watcher = CallWatcher(plan, tokenizer, eager=lambda name: False)

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
            scores = _logprobs(self._generation, [token], self._asked.tops)
            if text or scores.get("logprobs") or (result is not None and result.tool_calls):
                piece = {**self._fields(text, ""), **scores}
                piece = piece if result is None else _with_calls(piece, result)
                out.append({**self._head, **piece, "done": False})
            if result is not None:
                ended = _end(self._generation, result, self._asked)
                out.append({**self._head, **self._fields("", ""), **ended})
        return "".join(dumps(line) + "\n" for line in out).encode()

    async def end(self) -> bytes:
        """The last line has been sent."""
        return b""

    def failed(self, error: ApiError) -> bytes:
        """The error is a line too, and the last one."""
        return (dumps(body_of(error, "/api/")) + "\n").encode()


async def _load(state: State, body: Common, made: Made, request: Request, empty: dict[str, Any]) -> Response:
    """Without a prompt a model is loaded, or with `keep_alive` 0 unloaded."""
    name = made.base
    head = {"model": body.model, "created_at": _now(), **empty, "done": True}
    if body.keep_alive in (0, "0", "0s"):
        require_admin(request)
        await state.registry.unload(name)
        return Json({**head, "done_reason": "unload"})
    generation = await begin(state, name, request)
    generation.close()
    return Json({**head, "done_reason": "load"})


def _end(generation: Generation, result: Result, asked: _Asked) -> dict[str, Any]:
    spent = generation.timings([result])
    context = {} if asked.context is None else {"context": [*asked.seen, *result.tokens]}
    return {
        "done": True,
        "done_reason": WORDS[result.finish_reason],
        **ended_by(result),
        "total_duration": _nanoseconds(spent["total"]),
        "load_duration": _nanoseconds(spent["load"]),
        "prompt_eval_count": result.usage.prompt_tokens,
        "prompt_eval_duration": _nanoseconds(spent["first_token"]),
        "eval_count": result.usage.completion_tokens,
        "eval_duration": _nanoseconds(spent["decode"]),
        **context,
        **generation.warnings,
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


def _now() -> str:
    return datetime.now(timezone.utc).isoformat()


def _nanoseconds(seconds: float) -> int:
    return int(1e9 * seconds)
