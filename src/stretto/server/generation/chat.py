"""Conversations: from the messages of a request to a prompt."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import NoneType
from typing import Any, cast

from fastapi import Request

from stretto import Audio, Image
from stretto.errors import Unsupported
from stretto.llm import LLM
from stretto.server.generation.generation import Generation, unless_gone
from stretto.server.generation.images import from_audio, from_base64, from_url
from stretto.server.generation.options import (
    chat_options,
    check_at_most,
    check_prompts,
    check_size,
    read_grammar,
)
from stretto.server.generation.requests import (
    AudioPart,
    ChatRequest,
    ImagePart,
    Message,
    NamedFunction,
    NamedTool,
    PromptParts,
    PromptString,
    TextPart,
    Tool,
    ToolCall,
)
from stretto.server.http.errors import field_error, translate, unsupported
from stretto.server.http.state import get_state
from stretto.server.settings import RequestLimits, Settings
from stretto.text.messages import EFFORTS, NO_EFFORT, SWITCHES
from stretto.tools.plan import ToolPlan

Prompt = Callable[[], list[int]]
Media = dict[tuple[int, int], Image | Audio]  # by the indices of message and part
Warn = Callable[[str, str], None]  # takes a field and what became of it


async def plan_chat_tools(body: ChatRequest, llm: LLM, limits: RequestLimits, caller: str) -> ToolPlan:
    """The tool plan of a chat request."""
    choice = body.tool_choice
    check_count(body.tools, limits)
    tools = None if body.tools is None else [tool.model_dump(exclude_none=True) for tool in body.tools]
    named = choice.model_dump() if isinstance(choice, NamedTool) else choice
    return await plan_tools(llm, tools, named, limits, body.parallel_tool_calls, caller=caller)


async def plan_tools(
    llm: LLM,
    tools: list[dict[str, Any]] | None,
    choice: Any,
    limits: RequestLimits,
    parallel: bool | None = None,
    *,
    caller: str,
) -> ToolPlan:
    """As `llm.atool_plan`, with the limits of the server; an empty list is no tools."""
    if tools:
        check_count(tools, limits)
        check_size("tools", tools, limits)
        return await llm.atool_plan(tools, choice, parallel, caller=caller)
    return llm.tool_plan(None, choice)


def check_count(tools: Sequence[object] | None, limits: RequestLimits) -> None:
    """Refuse more tools than the operator allows."""
    if tools is not None and len(tools) > limits.tools:
        message = f"tools has {len(tools):,} entries; at most {limits.tools:,} are served"
        raise field_error("tools", message, "over_limit")


async def make_prompt(
    body: ChatRequest,
    generation: Generation,
    settings: Settings,
    plan: ToolPlan,
    thinking: dict[str, Any] | None = None,
) -> Prompt:
    """A function that makes the prompt, to be called in a thread: templates and tokenizers take time.

    `thinking` are template arguments in place of those for `thinking` and `reasoning_effort`.
    """
    llm, warn = generation.lease.llm, generation.warn
    if thinking is None:
        switch = body.thinking.type if body.thinking is not None else "adaptive"
        think = None if switch == "adaptive" else switch == "enabled"
        thinking = find_thinking(llm, think, "thinking", warn)
        thinking |= find_thinking(llm, body.reasoning_effort, "reasoning_effort", warn)
    arguments = thinking | fit_arguments(llm, body.chat_template_kwargs or {}, warn)
    parts = {
        (i, j): part
        for i, message in enumerate(body.messages)
        if isinstance(message.content, list)
        for j, part in enumerate(message.content)
        if not isinstance(part, TextPart)
    }
    n_sounds = sum(isinstance(part, AudioPart) for part in parts.values())
    take_images(generation, len(parts) - n_sounds, "messages", n_sounds)
    media: Media = {}
    seconds = 0.0
    for (i, j), part in parts.items():
        param = f"messages[{i}].content[{j}].{part.type}"
        if isinstance(part, ImagePart):
            media[i, j] = await from_url(part.image_url.url, f"{param}.url", settings)
        else:
            left = settings.limits.audio_seconds - seconds
            sound = media[i, j] = await from_audio(part.input_audio.data, f"{param}.data", settings, left)
            seconds += sound.seconds
    messages = [as_message(message, index, media) for index, message in enumerate(body.messages)]
    name_answers(messages)
    return render_prompt(generation, messages, settings, plan, arguments, **_ending(body))


def _ending(body: ChatRequest) -> dict[str, bool]:
    """How the prompt ends: where an answer begins, within the last message, or behind it."""
    if not body.continue_final_message:
        return {} if body.add_generation_prompt is not False else {"add_generation_prompt": False}
    if body.add_generation_prompt:
        raise field_error(
            "add_generation_prompt",
            "continue_final_message continues the last message, and add_generation_prompt begins another; "
            "give one of them",
        )
    return {"continue_final": True}


def last_answer(body: ChatRequest) -> str:
    """The text of the last message, if it is the assistant's: what `echo` puts before the answer."""
    last = body.messages[-1]
    text = as_message(last, 0, {}).get("content") if last.role == "assistant" else None
    return text if isinstance(text, str) else ""


def find_thinking(llm: LLM, think: bool | str | None, param: str, warn: Warn) -> dict[str, Any]:
    """The template arguments for a request's wish to think, or not to.

    Clients send such fields to every model: one that cannot think, or not by degrees, answers as it can.
    """
    if think is None:
        return {}
    try:
        return llm.thinking(think)
    except Unsupported as error:
        if think in (False, NO_EFFORT):  # it cannot but think
            raise unsupported(f"{param}: {error}", param) from None
        warn(param, str(error))
        return {}


def fit_arguments(llm: LLM, arguments: dict[str, Any], warn: Warn) -> dict[str, Any]:
    """Template arguments; those about thinking by the names that this model's template has, if it thinks."""
    found: dict[str, Any] = {}
    for name, value in arguments.items():
        is_wish = isinstance(value, (bool if name in SWITCHES else str, NoneType))
        if name in (*SWITCHES, *EFFORTS) and name not in llm.template_variables and is_wish:
            found |= find_thinking(llm, value, f"chat_template_kwargs.{name}", warn)
        else:
            found[name] = value
    return found


def take_images(generation: Generation, n: int, param: str, n_sounds: int = 0) -> None:
    """Refuse images and sounds before any is decoded: too many, or for a model without their encoder."""
    vision = generation.lease.llm.vision
    if n_sounds and (vision is None or not vision.hears):
        raise unsupported(
            f"{param}: input_audio is not supported by this model, which was loaded without a --vision file "
            "that hears; /v1/audio/transcriptions writes down what is said",
            param,
        )
    if n and vision is None:
        raise unsupported("images are not supported by this model: it was loaded without --vision", param)
    if n and vision is not None and vision.hears:
        raise unsupported("images are not supported by this model, which hears sounds", param)
    check_at_most("sounds" if n_sounds else "images", n + n_sounds, generation.limits.images)
    generation.take_images(n + n_sounds)


def render_prompt(
    generation: Generation,
    messages: list[dict[str, Any]],
    settings: Settings,
    plan: ToolPlan,
    arguments: dict[str, Any],
    **ending: bool,
) -> Prompt:
    """A function that renders messages as a prompt; `ending` says how it ends."""
    check_prompts("messages", ["".join(_texts(messages))], settings.limits)
    llm = generation.lease.llm
    read = llm.template_variables & settings.template_arguments.keys()
    return partial(
        llm.chat_prompt,
        messages,
        tools=plan.shown,
        template={**{name: settings.template_arguments[name] for name in read}, **arguments},
        cache_salt=generation.caller.salt or None,
        **ending,
    )


def as_message(message: Message, index: int, media: Media) -> dict[str, Any]:
    """A message as templates take it: without the fields that were not given."""
    fields: dict[str, Any] = {"role": "system" if message.role == "developer" else message.role}
    content: str | list[Any] | None
    if not isinstance(message.content, list):
        content = message.content
    elif any(not isinstance(part, TextPart) for part in message.content):
        content = [
            part.model_dump() if isinstance(part, TextPart) else media[index, j]
            for j, part in enumerate(message.content)
        ]
    else:
        content = "\n".join(part.text for part in message.content if isinstance(part, TextPart))
    if content is not None:
        fields["content"] = content
    for name in ("name", "tool_call_id"):
        if (value := getattr(message, name)) is not None:
            fields[name] = value
    if thoughts := message.reasoning_content or message.reasoning:
        fields["reasoning_content"] = thoughts
        fields.setdefault("content", "")
    if message.tool_calls:
        fields["tool_calls"] = [call.model_dump() for call in message.tool_calls]
        fields.setdefault("content", "")
    if message.refusal is not None:
        fields.setdefault("content", message.refusal)
    return fields


def name_answers(messages: list[dict[str, Any]]) -> None:
    """Add the function's name to tool answers: some templates use it, and clients leave it out."""
    names: dict[str, str] = {}
    for message in messages:
        names.update({call["id"]: call["function"]["name"] for call in message.get("tool_calls", ())})
        if message["role"] == "tool" and message.get("tool_call_id") in names:
            message.setdefault("name", names[message["tool_call_id"]])


async def ollama_prompt(
    generation: Generation,
    messages: list[dict[str, Any]],
    images: dict[int, list[str]],
    plan: ToolPlan,
    settings: Settings,
    think: bool | str | None,
) -> Prompt:
    """As `make_prompt`, for messages of Ollama's clients."""
    arguments = find_thinking(generation.lease.llm, think, "think", generation.warn)
    take_images(generation, sum(map(len, images.values())), "images")
    for index, texts in images.items():
        if texts:
            param = f"messages[{index}].images"
            decoded = [await from_base64(text, param, settings) for text in texts]
            messages[index]["content"] = [*decoded, {"type": "text", "text": messages[index]["content"]}]
    return render_prompt(generation, messages, settings, plan, arguments)


def _texts(messages: list[dict[str, Any]]) -> list[str]:
    """The texts of all messages, without images and sounds."""
    texts: list[str] = []
    for message in messages:
        content = message.get("content") or ""
        parts = [content] if isinstance(content, str) else content
        texts.append(message.get("reasoning_content") or "")
        texts += [
            part if isinstance(part, str) else part["text"]
            for part in parts
            if not isinstance(part, (Image, Audio))
        ]
    return texts


def _text_parts(message: Message) -> list[str]:
    """The texts that a message consists of."""
    content = message.content
    if isinstance(content, list):
        return [part.text for part in content if isinstance(part, TextPart)]
    return [content] if content else []


# Chat requests of every protocol, once they are in OpenAI's form: tools, prompt, and the texts queued.


def read_chat_options(body: ChatRequest, limits: RequestLimits) -> dict[str, Any]:
    """The options of the engine."""
    return {**chat_options(body, limits), **read_grammar(body, limits)}


async def prepare_chat(
    body: ChatRequest, generation: Generation, settings: Settings, thinking: dict[str, Any] | None = None
) -> tuple[ToolPlan, Prompt]:
    """The plan of the tools, and the prompt as a function that makes it."""
    plan = await plan_chat_tools(body, generation.lease.llm, settings.limits, generation.caller.name)
    plan = plan.beside([{"role": one.role, "content": _text_parts(one)} for one in body.messages])
    return plan, await make_prompt(body, generation, settings, plan, thinking)


async def converse(
    body: ChatRequest,
    generation: Generation,
    settings: Settings,
    options: dict[str, Any],
    thinking: dict[str, Any] | None = None,
) -> ToolPlan:
    """Queue the answer to a conversation; returns the plan of its tools, which reads the answer."""
    plan, prompt = await prepare_chat(body, generation, settings, thinking)
    follow = bool(body.stream and body.return_progress)
    await generation.start([prompt], plan.options({"reasoning": True, **options}), follow=follow)
    return plan


@contextmanager
def rename_fields(names: Mapping[str, str], *fields: str) -> Iterator[None]:
    """Make errors about a chat request ones about the body it was made from; `names` are of its fields."""
    try:
        yield
    except Exception as error:
        found = translate(error, *fields)
        param = found.param
        if param is not None and (name := names.get(param)) is not None:
            found.param = name
            found.message = found.message.replace(param, name)
        raise found from error


# The token ids of a prompt: of a text, of ids, or of both in a row.


def encode_prompt(llm: LLM, prompt: Any) -> list[int]:
    """The token ids of a prompt."""
    if callable(prompt):
        prompt = prompt()
    if isinstance(prompt, list) and is_mixed(prompt):
        return mixed_ids(llm, prompt)
    return llm.tokenizer.encode(prompt, special=True) if isinstance(prompt, str) else list(prompt)


async def encode_prompts(generation: Generation, prompts: Sequence[Any]) -> list[list[int]]:
    """The token ids of prompts, made in a thread."""
    llm = generation.lease.llm
    return await asyncio.to_thread(lambda: [encode_prompt(llm, prompt) for prompt in prompts])


async def encode_chat(
    body: ChatRequest, generation: Generation, request: Request, thinking: dict[str, Any] | None = None
) -> list[int]:
    """The token ids of a conversation with its tools."""
    settings = get_state(request).settings
    _, prompt = await unless_gone(request, prepare_chat(body, generation, settings, thinking))
    (ids,) = await encode_prompts(generation, [prompt])
    return ids


def is_mixed(prompt: Any) -> bool:
    """Whether a prompt is a list of texts and ids."""
    if not isinstance(prompt, list):
        return False
    kinds = set(map(type, prompt))
    return kinds == {int, str}


def mixed_ids(llm: LLM, parts: list[int | str], bos: bool | None = None) -> list[int]:
    """The ids of texts and ids in a row; only a text at the beginning gets a BOS token."""
    ids: list[int] = []
    for at, part in enumerate(parts):
        if isinstance(part, int):
            ids.append(part)
        else:
            ids += llm.tokenizer.encode(part, special=True, bos=bos if at == 0 else False)
    if not ids:
        raise field_error("prompt", "prompt: there is no token in it")
    return ids


def split_prompts(given: Any) -> list[Any]:
    """A prompt or a list of prompts as a list; a list with ids in it is one prompt."""
    if not isinstance(given, list) or isinstance(given[0], int) or is_mixed(given):
        return [given]
    return list(given)


def unwrap_text(given: Any) -> str | list[Any]:
    """A text or a list of ids and texts, of which an object holds one."""
    if isinstance(given, PromptString):
        return given.prompt_string
    if isinstance(given, PromptParts):
        return "".join(part.text for part in given.content)
    return cast("str | list[Any]", given)


# `functions` and `function_call`, which OpenAI's clients sent before there were tools.


def replace_functions(body: ChatRequest) -> ChatRequest:
    """A chat request whose functions, and the messages about them, are those of tools."""
    messages = _replace_function_messages(body.messages)
    if body.functions is None:
        if body.function_call is not None:
            raise field_error("function_call", "function_call needs functions")
        return body if messages is body.messages else body.model_copy(update={"messages": messages})
    if body.tools is not None or body.tool_choice is not None:
        raise field_error("functions", "functions and tools say the same; give tools")
    choice: Any = body.function_call
    if isinstance(choice, NamedFunction):
        choice = NamedTool(type="function", function=choice)
    tools = [Tool(type="function", function=function) for function in body.functions]
    changed = {"tools": tools, "tool_choice": choice, "parallel_tool_calls": False}
    changed |= {"functions": None, "function_call": None}
    return body.model_copy(update={**changed, "messages": messages})


def _replace_function_messages(messages: list[Message]) -> list[Message]:
    """Messages with calls and results as those of tools; the ids that connect them are made here."""
    if not any(message.role == "function" or message.function_call for message in messages):
        return messages
    found: list[Message] = []
    last: dict[str, str] = {}  # the id of the last call of each function
    for number, message in enumerate(messages):
        if (call := message.function_call) is not None:
            last[call.name] = name = f"call{number:05}"
            tool_call = ToolCall(id=name, type="function", function=call)
            message = message.model_copy(update={"tool_calls": [tool_call], "function_call": None})
        elif message.role == "function":
            answered = last.get(message.name or "")
            if answered is None:
                param = f"messages[{number}].name"
                raise field_error(param, f"{param} names no function that was called before")
            message = message.model_copy(update={"role": "tool", "tool_call_id": answered})
        found.append(message)
    return found


def continue_last_answer(body: ChatRequest) -> ChatRequest:
    """The request as llama-server takes it: with `continue_final_message`, if the assistant spoke last."""
    if body.continue_final_message is not None or body.add_generation_prompt is not None:
        return body
    last, before = body.messages[-1], body.messages[-2:-1]
    if last.role != "assistant" or last.tool_calls or not last.content:
        return body
    if any(message.role == "assistant" for message in before):
        at = f"messages[{len(body.messages) - 1}]"
        raise field_error(at, f"{at} and the one before it are both the assistant's; one can be continued")
    return body.model_copy(update={"continue_final_message": True})
