"""`/api/generate`, `chat`, `embed`, `embeddings`: Ollama's endpoints for texts. Streams are lines of JSON."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from typing import Any

from fastapi import Request
from starlette.responses import Response

from stretto.errors import InvalidRequest
from stretto.server.generation.answer import long_json, respond, start_answer
from stretto.server.generation.chat import ollama_prompt, plan_tools, split_prompts
from stretto.server.generation.generation import Generation, lease_model, unless_gone
from stretto.server.generation.options import check_prompts, ollama_grammar, plain_options
from stretto.server.generation.vectors import Vectors, embed_texts
from stretto.server.http.bodies import make_router
from stretto.server.http.errors import Json, field_error
from stretto.server.http.state import State, get_state, require_admin
from stretto.server.ollama.answers import Asked, OllamaAnswer, count_ns, now
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
        raise field_error(
            "options.num_ctx",
            f"options.num_ctx is {given.num_ctx:,}, and the context has {length:,} tokens; start the server "
            "with more --cells, if the model can use them",
        )


def merge_options(parameters: dict[str, Any], given: Options | None) -> Options | None:
    """The options of a request over the parameters of a made model."""
    if not parameters:
        return given
    own = {} if given is None else given.model_dump(exclude_none=True)  # those that are not known too
    return RequestOptions.model_validate({**parameters, **own})


def _check_neutral(given: Options) -> None:
    for name, neutral in NEUTRAL.items():
        value = getattr(given, name)
        if value is not None and value not in neutral:
            raise field_error(
                f"options.{name}",
                f"options.{name} is not supported here; leave it out, or give {neutral[0]}",
                "unsupported",
            )
    penalty = given.repeat_penalty
    if given.repeat_last_n not in (None, -1, 0) and penalty is not None and penalty != 1:
        raise field_error(
            "options.repeat_last_n",
            "options.repeat_last_n: the penalty looks at the whole text here; leave it out, or give -1 or 0",
            "unsupported",
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


router = make_router("Ollama")


@router.post("/api/generate")
async def generate(body: GenerateRequest, request: Request) -> Response:
    """Answer a prompt."""
    state = get_state(request)
    _, made = state.part(MadeModels).resolve(body.model, state.registry)
    if not body.prompt and not body.images and not body.suffix:
        return await _load(state, body, made, request, {"response": ""})
    system = body.system or made.system
    messages = [{"role": "system", "content": system}] if system else []
    messages += [_message(OllamaMessage.model_validate(one)) for one in made.messages]
    messages.append({"role": "user", "content": body.prompt or ""})
    images = {len(messages) - 1: body.images or []}
    asked = Asked(body, made, messages, images, _whole(body, made, system))
    if asked.whole is None and not body.images:
        asked.context = body.context or []
    elif body.context:
        raise field_error("context", "context has no place beside raw, suffix, template or images")
    return await _generated(state, asked, request)


@router.post("/api/chat")
async def chat(body: OllamaChatRequest, request: Request) -> Response:
    """Answer a conversation."""
    state = get_state(request)
    _, made = state.part(MadeModels).resolve(body.model, state.registry)
    if not body.messages:
        return await _load(state, body, made, request, {"message": {"role": "assistant", "content": ""}})
    given = [*(OllamaMessage.model_validate(one) for one in made.messages), *body.messages]
    if made.system and all(message.role != "system" for message in given):
        given.insert(0, OllamaMessage(role="system", content=made.system))
    images = {index: message.images or [] for index, message in enumerate(given)}
    asked = Asked(body, made, [_message(message) for message in given], images)
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
    state = get_state(request)
    check_prompts("input", texts, state.settings.limits)
    _, made = state.part(MadeModels).resolve(model, state.registry)
    vectors: Any = []
    n_tokens = 0
    async with lease_model(request, made.base, "input", verb="embed") as generation:
        tell_unknown(options, generation.warn)
        if texts:  # without any the model is loaded, and that is all
            vectors, n_tokens = await unless_gone(request, embed_texts(generation, texts, how))
    spent = generation.spent()
    numbers = [vector.tolist() for vector in vectors]
    return numbers, {
        "total_duration": count_ns(spent["total"]),
        "load_duration": count_ns(spent["load"]),
        "prompt_eval_count": n_tokens,
        **generation.warnings,
    }


def _whole(body: GenerateRequest, made: Made, system: str) -> Callable[[Tokenizer], str | list[int]] | None:
    """A function that makes the prompt of a request that does not use the model's template."""
    prompt, suffix, template = body.prompt or "", body.suffix, body.template or made.template
    if not (body.raw or suffix or template):
        return None
    if body.images:
        raise field_error("images", "images have no place in a raw prompt; leave raw away")
    if body.think:
        raise field_error("think", "think has no place in a raw prompt; leave it out")
    if suffix:
        if body.raw or body.system or body.template:
            raise field_error("suffix", "suffix has no place beside raw, system or template")
        return lambda tokenizer: infill_prompt(tokenizer, prompt, suffix)
    if body.raw:
        return lambda tokenizer: prompt
    return lambda tokenizer: render(template, {"System": system, "Prompt": prompt})


async def _generated(state: State, asked: Asked, request: Request) -> Response:
    limits, body = state.settings.limits, asked.body
    wanted = merge_options(asked.made.parameters, body.options)
    options = engine_options(wanted)
    options.update(ollama_grammar(body.format, limits))
    if (tops := asked.tops) is not None:
        options["logprobs"] = max(1, tops)
    texts = [str(message["content"]) for message in asked.messages]
    check_prompts("prompt" if asked.whole else "messages", texts, limits)
    tools = body.tools if isinstance(body, OllamaChatRequest) else None

    async def start(generation: Generation) -> OllamaAnswer:
        llm = generation.lease.llm
        check_context(wanted, llm.context_length)
        tell_unknown(wanted, generation.warn)
        plan = await plan_tools(llm, tools, None, limits, caller=generation.caller.name)
        plan = plan.beside(asked.messages)
        prompt = await _prompt(generation, asked, plan, state)
        await generation.start([prompt], plan.options({**options, "reasoning": asked.whole is None}))
        return OllamaAnswer(generation, asked, plan)

    request.scope["stretto"].update(model=body.model)
    answer = await start_answer(request, asked.made.base, start, "prompt", "format")
    return await respond(request, answer, body.stream is not False)


async def _prompt(generation: Generation, asked: Asked, plan: ToolPlan, state: State) -> Any:
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


async def _load(state: State, body: Common, made: Made, request: Request, empty: dict[str, Any]) -> Response:
    """Without a prompt a model is loaded, or with `keep_alive` 0 unloaded."""
    name = made.base
    head = {"model": body.model, "created_at": now(), **empty, "done": True}
    if body.keep_alive in (0, "0", "0s"):
        require_admin(request)
        await state.registry.unload(name)
        return Json({**head, "done_reason": "unload"})
    async with lease_model(request, name):
        pass
    return Json({**head, "done_reason": "load"})


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
